"""What each rank of test_learner_ranks.py runs under torchrun: MODEL OUT [gather_once]."""

import json
import sys
from pathlib import Path
from threading import Thread

import numpy as np
import torch
import torch.distributed as dist

from agentloop.trainer.backends.fsdp import FsdpLearner
from agentloop.trainer.batch import Sample, TrainBatch
from agentloop.trainer.learner import LearnerConfig


def batch(count: int) -> TrainBatch:
    rng = np.random.default_rng(count)
    samples = []
    for length in rng.integers(4, 40, size=count):
        mask = rng.random(length) < 0.5
        mask[0], mask[-1] = False, True
        ids = rng.integers(0, 64, length).astype(np.int32)
        logprobs = np.where(mask, -4.1, 0).astype(np.float32)
        samples.append(Sample(ids, mask, logprobs, np.zeros(length, np.int32), float(rng.normal())))
    return TrainBatch(samples)


def train(model: Path, out: Path, gather_once: bool = False) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Two steps, a resume in between; the second has fewer samples than ranks. Metrics, and the weights in the end."""
    config = LearnerConfig(
        model=str(model), device="cpu", lr=0.3, eps=1.0, token_budget=60, grad_clip=0.5, gather_once=gather_once
    )
    learner = FsdpLearner(config)
    metrics = [learner.step(batch(9))]
    # Written while all ranks train on: neither may wait for the other.
    captured = learner.capture()
    writing = Thread(target=captured.write, args=(out / "state",))
    writing.start()
    learner.step(batch(7))
    writing.join()
    learner = FsdpLearner(config)
    learner.load(out / "state")
    metrics.append(learner.step(batch(1)))
    learner.save_hf(out / "hf")
    return metrics, {name: tensor.clone() for name, tensor in learner.weights()}


if __name__ == "__main__":
    model, out = map(Path, sys.argv[1:3])
    metrics, weights = train(model, out, gather_once="gather_once" in sys.argv)
    torch.save(weights, out / f"weights-{dist.get_rank()}.pt")
    (out / f"metrics-{dist.get_rank()}.json").write_text(json.dumps(metrics))
    dist.destroy_process_group()
