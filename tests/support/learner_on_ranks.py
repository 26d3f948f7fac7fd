"""Script that each rank of test_learner_ranks.py runs under torchrun: MODEL OUT [gather_once] [lora]."""

import json
import sys
from pathlib import Path
from threading import Thread

import torch
import torch.distributed as dist

from agentloop.config.learner import LearnerConfig
from agentloop.registry.named_objects import load_object
from agentloop.trainer.learner.fsdp.learner import FsdpLearner

random_batch = load_object(f"{Path(__file__).parent / 'tiny.py'}:random_batch", "function")


def train(
    model: Path, out: Path, gather_once: bool = False, lora: bool = False
) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Two steps, a resume in between; the second has fewer samples than ranks. Metrics, and the weights in the end."""
    config = LearnerConfig(
        model=str(model),
        device="cpu",
        lr=0.3,
        eps=1.0,
        token_budget=60,
        grad_clip=0.5,
        gather_once=gather_once,
        lora={"rank": 4} if lora else None,
    )
    learner = FsdpLearner(config)
    metrics = [learner.step(random_batch(9))]
    # Written while all ranks train on: neither may wait for the other.
    captured = learner.capture()
    writing = Thread(target=captured.write, args=(out / "state",))
    writing.start()
    learner.step(random_batch(7))
    writing.join()
    learner = FsdpLearner(config)
    learner.load(out / "state")
    metrics.append(learner.step(random_batch(1)))
    learner.save_hf(out / "hf")
    return metrics, {name: tensor.clone() for name, tensor in learner.weights()}


if __name__ == "__main__":
    model, out = map(Path, sys.argv[1:3])
    metrics, weights = train(model, out, gather_once="gather_once" in sys.argv, lora="lora" in sys.argv)
    torch.save(weights, out / f"weights-{dist.get_rank()}.pt")
    (out / f"metrics-{dist.get_rank()}.json").write_text(json.dumps(metrics))
    dist.destroy_process_group()
