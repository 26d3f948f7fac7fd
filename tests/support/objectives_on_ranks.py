"""Every loss, aggregation and correction there is, and whose gradients they are: what each rank of
test_objectives_on_ranks.py computes, MODEL SAMPLES OUT."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from agentloop.config.learner import KlEstimator, LearnerConfig
from agentloop.trainer import corrections, losses
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.learner.fsdp.critic import FsdpCritic
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.losses import Aggregation
from agentloop.trainer.objective.objective import Objective

Gradients = dict[str, torch.Tensor]
Options = dict[str, Any]
MODELS: dict[str, Options] = {"policy": {}, "adapters": {"lora": {"rank": 2}}, "critic": {"loss": "value"}}
WAYS: dict[str, Options] = {
    "layer by layer": {"gather_once": False, "token_budget": 80},
    "gathered once": {"gather_once": True, "token_budget": 80},
    "rows and prompts shared, layers computed again": {
        "gather_once": True,
        "token_budget": 120,
        "sequence_parallel": 2,
        "share_prefixes": True,
        "checkpointing": "sparse",
    },
}
_BOUNDS = {"low": 0.8, "high": 1.3}
_CORRECTIONS: dict[str, Options] = {"truncate": {"cap": 1.1}, "mask": _BOUNDS, "icepop": _BOUNDS, "reject": _BOUNDS}
_CORRECTIONS["veto"] = {"threshold": 0.5}
"""Options with which some tokens are concerned and others not."""


def cases() -> dict[str, tuple[str, Options]]:
    """Return a model and the settings of its objective, by name."""
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
    }
    whole = {name: ("policy", options) for name, options in found.items()}
    adapters = {f"adapters, {name}": ("adapters", found[name]) for name in ("loss ppo", "loss gspo", "kl k3")}
    return whole | adapters | {"critic": ("critic", {"loss": "value", "loss_options": {"clip": 0.2}})}


def _levels() -> Iterator[tuple[str, Options]]:
    for name in corrections.names():
        has_levels = "level" in corrections.get(name).options.model_fields
        for level in corrections.Level if has_levels else [None]:
            yield f"{name} {level or ''}", _CORRECTIONS.get(name, {}) | ({"level": level} if level else {})


def samples(model: Path) -> list[Sample]:
    """Return four groups of three that share a prompt, up to 60 tokens, sampled by weights of three versions."""
    rng = np.random.default_rng(0)
    found = []
    for group in range(4):
        prompt = rng.integers(0, 64, 12)
        for number in range(3):
            ids = np.concatenate([prompt, rng.integers(0, 64, rng.integers(4, 48))]).astype(np.int32)
            mask = np.arange(len(ids)) >= 12
            mask[12:-1] = rng.random(len(ids) - 13) < 0.6
            versions = np.where(mask, rng.integers(0, 3, len(ids)), -1).astype(np.int32)
            advantage = [0.0, float(rng.normal()), rng.normal(size=mask.sum()).astype(np.float32)][number]
            zeros = np.zeros(len(ids), np.float32)
            found.append(Sample(ids, mask, zeros, versions, advantage, policy_version=2, group_id=str(group)))
    now = FsdpLearner(LearnerConfig(model=str(model), device="cpu")).logprobs(found)

    def near(values: np.ndarray, far: float) -> np.ndarray:
        return (values + rng.normal(0, far, len(values))).astype(np.float32)

    def of(sample: Sample, values: np.ndarray) -> Sample:
        logprobs = np.zeros(len(sample), np.float32)
        logprobs[sample.loss_mask] = near(values, 0.3)
        return replace(sample, logprobs=logprobs, reference_logprobs=near(values, 0.2))

    return [of(sample, values) for sample, values in zip(found, now, strict=True)]


def run(model: Path, batch: list[Sample], way: Options) -> dict[str, tuple[float, Gradients]]:
    """Return the loss and gradients of each case."""
    plain = {"model": str(model), "device": "cpu", "grad_clip": None}
    makers = {name: FsdpCritic if name == "critic" else FsdpLearner for name in MODELS}
    learners = {name: makers[name](LearnerConfig(**plain | way | options)) for name, options in MODELS.items()}
    found = {}
    for name, (kind, options) in cases().items():
        learner = learners[kind]
        learner.config = LearnerConfig(**plain | way | MODELS[kind] | options)
        learner._objective = Objective(learner.config)
        with_old = batch
        if kind == "critic":
            with_old = [replace(each, old_logprobs=np.zeros(each.num_sampled, np.float32)) for each in batch]
        found[name] = _loss_and_gradients(learner, with_old)
    return found


def _loss_and_gradients(learner: FsdpLearner, batch: list[Sample]) -> tuple[float, Gradients]:
    """Return the gradients of the last update of one step, without applying any."""
    found: Gradients = {}

    def keep() -> None:
        for name, parameter in learner.policy.named_parameters():
            if (gradient := parameter.grad) is not None:
                found[name] = (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).clone()

    learner.optimizer.step = keep  # type: ignore[method-assign]
    learner._progress.steps = 0  # mini-batches are drawn by the step
    return learner.step(TrainBatch(batch))["loss"], found


if __name__ == "__main__":
    model, batch, out = map(Path, sys.argv[1:4])
    loaded = torch.load(batch, weights_only=False)
    results = {name: run(model, loaded, way) for name, way in WAYS.items()}
    if dist.get_rank() == 0:
        torch.save(results, out)
    dist.destroy_process_group()
