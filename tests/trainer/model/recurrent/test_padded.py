"""A recurrent layer that reads padded batches computes each sequence of a row as if it were alone."""

from pathlib import Path

import pytest
import torch
from torch import nn

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.model.attention.padded_layout import PaddedLayout
from agentloop.trainer.model.recurrent import layers as recurrent_layers
from agentloop.trainer.model.recurrent import padded
from agentloop.trainer.run.learners import create
from tests.support.small_models import save_small_model
from tests.support.tiny import random_batch


class _Sum(nn.Module):
    """Adds to each token all tokens before it, and the one before it by a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1d = nn.Conv1d(3, 3, 2, padding=1)

    def forward(self, hidden, scale=None, attention_mask=None, **kwargs):
        assert attention_mask is None
        assert not kwargs
        mixed = self.conv1d(hidden.transpose(1, 2))[..., :-1].transpose(1, 2)
        return (mixed.cumsum(1) * scale, "of no row")


@pytest.mark.parametrize("lengths", [[5], [1, 1], [3, 7, 2, 7], [40, 1, 2, 39]])
def test_sequences_of_a_row_do_not_see_each_other(lengths: list[int]):
    torch.manual_seed(0)
    layer = _Sum()
    assert recurrent_layers.prepare(nn.Sequential(layer), kernels=False) == (True, True)
    row, scale = torch.randn(2, 1, sum(lengths), 3).unbind()
    parts = zip(row.split(lengths, 1), scale.split(lengths, 1), strict=True)
    want = torch.cat([layer(part, factor)[0] for part, factor in parts], 1)
    row.requires_grad_()
    with padded.reading(PaddedLayout.of(lengths)):
        got, text = layer(row, scale=scale, attention_mask=torch.ones(1), padded="of the row", max_length_q=7)
    assert text == "of no row"
    torch.testing.assert_close(got, want)
    gradient = torch.autograd.grad(got.square().sum(), row)[0]
    alone = row.detach().requires_grad_()
    parts = zip(alone.split(lengths, 1), scale.split(lengths, 1), strict=True)
    want = torch.cat([layer(part, factor)[0] for part, factor in parts], 1)
    torch.testing.assert_close(gradient, torch.autograd.grad(want.square().sum(), alone)[0], rtol=1e-4, atol=1e-4)


def test_a_model_without_state_is_left_as_it_is():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    assert recurrent_layers.prepare(model, kernels=True) == (False, False)
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.fixture(scope="module")
def qwen3_5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model("qwen3_5_text", tmp_path_factory.mktemp("qwen3_5"))


def _config(model: Path, **options: object) -> LearnerConfig:
    values = {"device": "cpu", "lr": 1e-2, "token_budget": 128, **options}
    return LearnerConfig(model=str(model), **values)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_recomputed_layers_train_as_those_that_are_kept(qwen3_5: Path, checkpointing: str):
    """Layers that are recomputed in the backward divide the row again."""
    batch: TrainBatch = random_batch(6, lengths=(4, 40))
    learners = [create(_config(qwen3_5, checkpointing=kind)) for kind in ("off", checkpointing)]
    for learner in learners:
        learner.step(batch)
    kept, recomputed = (dict(learner.weights()) for learner in learners)
    for name, tensor in kept.items():
        torch.testing.assert_close(recomputed[name], tensor, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.slow
@pytest.mark.parametrize("option", [{"share_prefixes": True}, {"checkpointing": "sparse"}])
def test_options_that_need_layers_without_state_are_refused(qwen3_5: Path, option: dict[str, object]):
    with pytest.raises(UserError, match=r"recurrent layers|does not support layers of the class Qwen3_5DecoderLayer"):
        create(_config(qwen3_5, **option))
