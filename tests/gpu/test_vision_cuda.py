"""Images on CUDA: the tower's attention, the learner with its parts on the host, and vLLM beside the learner."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from agentloop.config.learner import LearnerConfig
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.registry.named_objects import load_object
from agentloop.rendering import renderer_for
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.model.attention.ops import packed_attention
from tests.support.image_samples import image_samples

pytestmark = pytest.mark.gpu

_TESTS = Path(__file__).parents[1]
_VISION = _TESTS / "agentloop" / "vision"
build_vision_model = load_object(f"{_VISION / 'models.py'}:build_vision_model", "function")
picture = load_object(f"{_VISION / 'models.py'}:picture", "function")
opened = load_object(f"{_VISION / 'episodes.py'}:opened", "function")
play = load_object(f"{_VISION / 'episodes.py'}:play", "function")
_NO_PREFIX = (None, None, None, None, 0, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_vision_model(tmp_path_factory.mktemp("model"), "qwen2_5_vl")


@pytest.fixture(scope="module")
def samples(folder):
    return image_samples(folder)


def learner_of(folder, **options):
    settings = {"device": "cuda", "compute_dtype": "bfloat16", "attention": "fa2", "token_budget": 400, **options}
    settings["compile_layers"] = False  # so that what is on the host rounds the same, and nothing takes a minute
    return FsdpLearner(LearnerConfig(model=str(folder), **settings))


@pytest.mark.parametrize("dim", [64, 72, 80])  # Qwen2-VL and Qwen2.5-VL have 80, Qwen3-VL 64 and 72
def test_attention_of_a_tower_equals_float64(dim):
    lengths = [64, 64, 4, 300, 1]
    cu = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device="cuda")
    rows = [torch.randn(sum(lengths), 16, dim, device="cuda").bfloat16().requires_grad_() for _ in range(3)]
    weight = torch.randn(sum(lengths), 16, dim, device="cuda")
    out, _ = packed_attention(*rows, cu, max(lengths), 0, dim**-0.5, "fa2", *_NO_PREFIX, causal=False)
    found = [out, *torch.autograd.grad((out * weight).sum(), rows)]
    exact = [row.detach().double().requires_grad_() for row in rows]
    parts = []
    for start, end in pairwise(cu.tolist()):
        query, key, value = (row[start:end].transpose(0, 1) for row in exact)
        parts.append((torch.softmax(query @ key.mT * dim**-0.5, -1) @ value).transpose(0, 1))
    want = torch.cat(parts)
    for one, other in zip(found, [want, *torch.autograd.grad((want * weight).sum(), exact)], strict=True):
        assert (one.double() - other).norm() < 1e-2 * other.norm()


def test_logprobs_with_flash_attention_in_the_tower_are_those_of_the_engine(folder, samples):
    learner = learner_of(folder)
    assert learner.policy.model.model.visual.config._attn_implementation == "agentloop_flash_tower_fa2"
    found = np.concatenate(learner.logprobs(samples))
    sampled = np.concatenate([sample.logprobs[sample.loss_mask] for sample in samples])
    assert abs(found - sampled).mean() < 0.05  # the engine sampled in float32


@pytest.mark.parametrize("offload", ["optimizer", "all"])
def test_what_is_on_the_host_changes_nothing(folder, samples, offload):
    plain = learner_of(folder).step(TrainBatch(samples))
    away = learner_of(folder, offload=offload).step(TrainBatch(samples))
    assert away["loss"] == pytest.approx(plain["loss"], rel=1e-2, abs=1e-3)
    assert away["grad_norm"] == pytest.approx(plain["grad_norm"], rel=2e-2)


@pytest.mark.vllm
async def test_vllm_and_the_learner_agree_before_and_after_an_update(folder):
    learner, renderer = learner_of(folder, lr=1e-3), renderer_for(folder)
    engine = VllmEngine(folder, max_model_len=640, gpu_memory_utilization=0.1, kv_cache_memory_bytes=1 << 30)
    await engine.start()
    try:
        for version in range(2):
            turns = [[picture(60, 90, 1)], [picture(90, 60, 2), picture(60, 90, 1)]]
            played = await play(engine, renderer, opened(renderer, [picture(100, 150)]), turns, max_tokens=20)
            sample = Sample.from_trajectory(played, advantage=1.0)
            (found,) = learner.logprobs([sample])
            assert abs(found - sample.logprobs[sample.loss_mask]).mean() < 0.05
            learner.step(TrainBatch([sample]))
            await learner.publish(engine, version + 1)
    finally:
        await engine.close()
