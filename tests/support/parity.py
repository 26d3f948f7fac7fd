"""The matrix "ranks equal one": ways to divide the work of a learner, and all objectives that must not notice it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from agentloop.config.learner import Aggregation, CheckpointingName, KlEstimator, LearnerConfig
from agentloop.trainer import corrections, losses
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.cluster.learner_ranks import LearnerRanks
from agentloop.trainer.learner.protocol import Learner
from agentloop.trainer.run.learners import create, create_critic

Options = dict[str, Any]
TOLERANCE = 1e-5
_ROUNDING = 6e-8
"""Largest relative error of a number that is rounded to float32."""
_PROMPT = 12
_TIMED = ("seconds/", "tokens_per_second", "flops_per_second", "balance", "computed_tokens")
"""Metrics that depend on how the work is divided."""


@dataclass(frozen=True)
class Layout:
    """A way to divide the work of a learner."""

    ranks: int
    options: Options
    backwards: bool = False
    """Whether the samples come in the opposite order."""
    in_process: bool = True
    """Whether rank 0 is in this process."""


@dataclass(frozen=True)
class Case:
    """An objective, and the model that it trains."""

    options: Options = field(default_factory=dict)
    steps: int = 1
    """Number of steps; adapters and heads that start with zeros need two for all gradients."""
    chosen: slice = field(default_factory=lambda: slice(None))
    """Samples that it is computed for."""


class Result(NamedTuple):
    """The results of a learner."""

    metrics: list[dict[str, float]]
    logprobs: np.ndarray
    """After the steps."""
    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]
    """Weights before and after the steps."""

    def update_norm(self, name: str) -> float:
        """Return how far a weight moved."""
        return (self.after[name] - self.before[name]).norm().item()


_ONCE: Options = {"gather_once": True, "token_budget": 120}
_SHARED: Options = {**_ONCE, "sequence_parallel": 2, "share_prefixes": True, "checkpointing": "sparse"}
_CHECKPOINTING = get_args(CheckpointingName)
OBJECTIVE_LAYOUTS = {
    "2 ranks": Layout(2, {"gather_once": False, "token_budget": 80}),
    "4 ranks share rows and prompts": Layout(4, _SHARED),
}
"""Layouts in which every case is computed."""
LAYOUTS = {
    **{f"1 rank, {kind}": Layout(1, {"checkpointing": kind}) for kind in _CHECKPOINTING},
    "1 rank, small rows": Layout(1, {"token_budget": 60}, backwards=True),
    "1 rank, shared prompts": Layout(1, {"share_prefixes": True, "token_budget": 120}),
    **OBJECTIVE_LAYOUTS,
    "1 rank, in a process of its own": Layout(1, {"token_budget": 80}, in_process=False),
    "2 ranks, in processes of their own": Layout(2, {"gather_once": False, "token_budget": 80}, in_process=False),
    "2 ranks, gathered once": Layout(2, _ONCE, backwards=True),
    "4 ranks": Layout(4, {"gather_once": False, "token_budget": 60}, backwards=True),
    "4 ranks, two copies": Layout(4, {"shard": "node", "nodes": 2, "token_budget": 80}),
    "4 ranks, each row over two": Layout(4, {"sequence_parallel": 2, "token_budget": 80}),
    "4 ranks, each row over all": Layout(4, {"sequence_parallel": 4, "token_budget": 80}),
    **{f"4 ranks, gathered once, {kind}": Layout(4, {**_ONCE, "checkpointing": kind}) for kind in _CHECKPOINTING},
}
BASIC_CASES = ("loss ppo", "loss gspo", "adapters", "critic", "fewer samples than ranks")
"""Cases that are computed in every layout."""

_BOUNDS = {"low": 0.8, "high": 1.3}
_CORRECTIONS: dict[str, Options] = {"truncate": {"cap": 1.1}, "mask": _BOUNDS, "icepop": _BOUNDS, "reject": _BOUNDS}
_CORRECTIONS["veto"] = {"threshold": 0.5}
"""Options with which a correction concerns some tokens and not others."""


def cases() -> dict[str, Case]:
    """Return a case for every loss, aggregation, correction and estimator there is, and some with other models."""
    of_policy = [name for name in losses.names() if name != "value"]
    found: dict[str, Options] = {f"loss {name}": {"loss": name} for name in of_policy}
    found |= {f"{loss}, {way}": {"loss": loss, "aggregation": way} for loss in ("ppo", "gspo") for way in Aggregation}
    found |= {name: {"corrections": ({"name": name.split()[0], "options": options},)} for name, options in _levels()}
    found |= {f"kl {kind}": {"kl_coef": 0.3, "kl_estimator": kind} for kind in KlEstimator}
    found |= {
        "entropy": {"entropy_bonus": 0.1},
        "all samples": {"skip_zero_advantage": False, "entropy_bonus": 0.1, "kl_coef": 0.1},
        "interpolated": {"old_logprobs": "interpolated"},
        "three updates": {"old_logprobs": "learner", "mini_batches": 3},
        "clipped": {"grad_clip": 0.01, "eps": 0.01},
        "pairs, two updates": {"loss": "dpo", "mini_batches": 2},
    }
    lora: Options = {"lora": {"rank": 2}, "lr": 0.3}
    return {name: Case(options) for name, options in found.items()} | {
        "adapters": Case(lora, steps=2),
        "adapters, kl": Case(lora | {"loss": "gspo", "kl_coef": 0.3}, steps=2),
        "critic": Case({"loss": "value", "loss_options": {"clip": 0.2}, "lr": 0.1}, steps=2),
        "fewer samples than ranks": Case(chosen=slice(1, 2)),
    }


def _levels() -> Iterator[tuple[str, Options]]:
    for name in corrections.names():
        has_levels = "level" in corrections.get(name).options.model_fields
        for level in corrections.Level if has_levels else [None]:
            yield f"{name} {level or ''}".strip(), _CORRECTIONS.get(name, {}) | ({"level": level} if level else {})


def grouped_samples(model: Path) -> list[Sample]:
    """Return four groups of three that share a prompt, sampled by weights of three versions, and one of two tokens."""
    rng = np.random.default_rng(0)
    found = []
    for group in range(4):
        prompt = rng.integers(0, 64, _PROMPT)
        for number in range(3):
            ids = np.concatenate([prompt, rng.integers(0, 64, rng.integers(4, 48))])
            mask = np.arange(len(ids)) >= _PROMPT
            mask[_PROMPT:-1] = rng.random(len(ids) - _PROMPT - 1) < 0.6
            advantage = [0.0, float(rng.normal()), rng.normal(size=mask.sum()).astype(np.float32)][number]
            found.append(_sample(ids, mask, rng, advantage, group=str(group)))
    found.append(_sample(np.array([1, 2]), np.array([False, True]), rng, 1.5, group="short"))
    near = create(learner_config(model)).logprobs(found)

    def of(sample: Sample, values: np.ndarray) -> Sample:
        logprobs = np.zeros(len(sample), np.float32)
        logprobs[sample.loss_mask] = values + rng.normal(0, 0.3, len(values))
        reference = (values + rng.normal(0, 0.2, len(values))).astype(np.float32)
        return replace(sample, logprobs=logprobs, reference_logprobs=reference)

    return [of(sample, values) for sample, values in zip(found, near, strict=True)]


def _sample(
    ids: np.ndarray, mask: np.ndarray, rng: np.random.Generator, advantage: float | np.ndarray, *, group: str
) -> Sample:
    versions = np.where(mask, rng.integers(0, 3, len(ids)), -1).astype(np.int32)
    zeros = np.zeros(len(ids), np.float32)
    return Sample(ids.astype(np.int32), mask, zeros, versions, advantage, policy_version=2, group_id=group)


def learner_config(model: Path, **options: Any) -> LearnerConfig:
    """With this `eps` the update is lr * g / (|g| + 1), smooth in the gradient: equal updates mean equal gradients."""
    plain: Options = {"device": "cpu", "lr": 1.0, "eps": 1.0, "grad_clip": None, "token_budget": 2000}
    return LearnerConfig(model=str(model), **(plain | options))


def _pairs(samples: list[Sample]) -> list[Sample]:
    """Return the samples as preference pairs, whose answers are far from each other."""
    half = len(samples) // 2
    return [
        replace(sample, advantage=1.0 if place < half else -1.0, episode=place % half)
        for place, sample in enumerate(samples[: 2 * half])
    ]


async def compute(
    model: Path, case: Case, samples: list[Sample], layout: Layout | None = None, ranks: LearnerRanks | None = None
) -> Result:
    """Return what a learner makes of the samples; without a layout it has one rank and one row."""
    config = learner_config(model, **case.options, **(layout.options if layout else {}))
    is_critic = config.loss == "value"
    samples = _pairs(samples) if config.loss == "dpo" else samples[case.chosen]
    if is_critic:
        samples = [replace(each, old_logprobs=np.zeros(each.num_sampled, np.float32)) for each in samples]
    backwards = layout is not None and layout.backwards and config.mini_batches == 1
    batch = TrainBatch(samples[::-1] if backwards else samples)
    learner = (create_critic if is_critic else create)(config, ranks)
    before = await _weights(learner)
    metrics = [learner.step(batch) for _ in range(case.steps)]
    logprobs = np.concatenate(learner.logprobs(samples))
    return Result(metrics, logprobs, before, await _weights(learner))


async def _weights(learner: Learner) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}

    class Engine:
        async def update_weights(self, published: Any, version: int) -> None:
            found.update({name: tensor.double() for name, tensor in published.tensors()})

    await learner.publish(Engine(), 1)  # type: ignore[arg-type]
    return found


def assert_equal(got: Result, want: Result) -> None:
    """Compare metrics, log-probabilities, and how the weights changed."""
    for ours, theirs in zip(got.metrics, want.metrics, strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            if not key.startswith(_TIMED):
                np.testing.assert_allclose(ours[key], theirs[key], rtol=TOLERANCE, atol=1e-7, err_msg=key)
    np.testing.assert_allclose(got.logprobs, want.logprobs, rtol=TOLERANCE, atol=TOLERANCE)
    assert got.after.keys() == want.after.keys()
    for key, weight in want.after.items():
        rounding = _ROUNDING * max(weight.norm().item(), 1.0)
        assert (got.after[key] - weight).norm() <= TOLERANCE * want.update_norm(key) + rounding, key
