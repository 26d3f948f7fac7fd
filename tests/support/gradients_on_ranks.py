"""Script that each rank of test_plan_invariance.py runs: MODEL OUT."""

import sys
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner

Gradients = dict[str, torch.Tensor]


def samples() -> list[Sample]:
    """Return 13 trajectories of 4 to 60 tokens, sampled by slightly different weights."""
    rng = np.random.default_rng(0)
    found = []
    for number, length in enumerate(rng.integers(4, 60, size=13)):
        mask = rng.random(length) < 0.5
        mask[0], mask[-1] = False, True
        ids = rng.integers(0, 64, length).astype(np.int32)
        logprobs = np.where(mask, rng.normal(-4.1, 0.3, length), 0).astype(np.float32)
        versions = np.zeros(length, np.int32)
        found.append(Sample(ids, mask, logprobs, versions, float(rng.normal()), trajectory_id=str(number)))
    return found


CASES = list(product([False, True], [60, 130], ["forward", "shuffled"]))
"""Whether ranks meet once an update, token budgets, orders."""


def run(model: Path, cases: list[tuple[bool, int, str]]) -> list[tuple[float, Gradients]]:
    """Return the loss and gradients of one update over all samples, before it is applied, for each case."""
    learners = {once: _learner(model, gather_once=once) for once in {case[0] for case in cases}}
    return [_loss_and_gradients(learners[once], budget, order) for once, budget, order in cases]


def _learner(model: Path, *, gather_once: bool) -> FsdpLearner:
    return FsdpLearner(LearnerConfig(model=str(model), device="cpu", grad_clip=None, gather_once=gather_once))


def _loss_and_gradients(learner: FsdpLearner, token_budget: int, order: str) -> tuple[float, Gradients]:
    learner.config = learner.config.replace(token_budget=token_budget)
    found: Gradients = {}

    def keep() -> None:
        for name, parameter in learner.policy.model.named_parameters():
            assert parameter.grad is not None
            gradient = parameter.grad
            found[name] = (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).clone()

    learner.optimizer.step = keep  # type: ignore[method-assign]
    batch = samples()
    if order != "forward":
        batch = [batch[index] for index in np.random.default_rng(1).permutation(len(batch))]
    return learner.step(TrainBatch(batch))["loss"], found


if __name__ == "__main__":
    model, out = map(Path, sys.argv[1:3])
    results = run(model, CASES)
    if dist.get_rank() == 0:
        torch.save(results, out)
    dist.destroy_process_group()
