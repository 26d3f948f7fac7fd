"""Check that the learner trains a small model of a family like plain transformers, or rejects it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from agentloop.config.learner import LearnerConfig
from agentloop.engines.base import Generation, SamplingParams
from agentloop.engines.hf.engine import HfEngine
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.run.learners import create
from tests.support.small_models import save_small_model

_WORDS = (3, 120)


def _batch() -> TrainBatch:
    rng = np.random.default_rng(5)
    samples = []
    for length in (14, 6, 21):
        mask = rng.random(length) < 0.7
        mask[0], mask[-1] = False, True
        ids = rng.integers(*_WORDS, length).astype(np.int32)
        samples.append(Sample(ids, mask, np.zeros(length, np.float32), np.zeros(length, np.int32), 1.0))
    return TrainBatch(samples)


def _plain(folder: Path, batch: TrainBatch) -> tuple[list[np.ndarray], dict[str, torch.Tensor]]:
    """Return log-probabilities of each sequence alone, and the weights after one update on their mean."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    found = []
    for sample in batch.samples:
        ids = torch.from_numpy(sample.token_ids).long()
        log_p = F.log_softmax(model(input_ids=ids[None], use_cache=False).logits[0], dim=-1)
        found.append(log_p[:-1].gather(1, ids[1:, None])[:, 0][torch.from_numpy(sample.loss_mask[1:])])
    (-torch.cat(found).mean()).backward()
    gradients = {name: p if p.grad is None else p - p.grad / (p.grad.abs() + 1) for name, p in model.named_parameters()}
    return [part.detach().numpy() for part in found], {name: value.detach() for name, value in gradients.items()}


async def hf_gap(folder: Path) -> float:
    """Return the largest difference of a log-probability of the hf engine from plain transformers.

    Raises `UserError` if the engine rejects the model.
    """
    engine = HfEngine(folder, device="cpu", dtype="float32")
    await engine.start()
    try:
        rng = np.random.default_rng(0)
        prompts = [rng.integers(*_WORDS, length).tolist() for length in (5, 23)]
        params = SamplingParams(max_tokens=6, seed=1)
        turns = [engine.generate(prompt, params, trajectory_id=str(len(prompt))) for prompt in prompts]
        return float(logprob_gap(folder, prompts, await asyncio.gather(*turns)))
    finally:
        await engine.close()


def logprob_gap(folder: Path, prompts: Sequence[list[int]], turns: Sequence[Generation]) -> float:
    """Return the largest difference of a log-probability between turns and the model in a folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    return max(differences(model, prompt, turn).max() for prompt, turn in zip(prompts, turns, strict=True))


def differences(model: torch.nn.Module, prompt: list[int], turn: Generation) -> NDArray[np.float64]:
    """Return how far the log-probabilities of a turn are from those of a model."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *turn.ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits.float(), -1)[range(len(turn.ids)), list(turn.ids)].numpy()
    return np.abs(np.array(turn.logprobs) - expected)


def outcome(family: str, folder: Path) -> str | None:
    """Return why the learner rejects a small model of a family; None if it trains it like plain transformers."""
    save_small_model(family, folder)
    # The update is then g / (|g| + 1), smooth in the gradient: equal weights mean equal gradients.
    config = LearnerConfig(model=str(folder), device="cpu", loss="sft", lr=1.0, eps=1.0, grad_clip=None)
    try:
        learner = create(config)
    except UserError as error:
        return str(error)
    batch = _batch()
    logprobs, weights = _plain(folder, batch)
    for got, want in zip(learner.logprobs(batch.samples), logprobs, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)
    learner.step(batch)
    for name, tensor in learner.weights():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-4, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}")
    return None
