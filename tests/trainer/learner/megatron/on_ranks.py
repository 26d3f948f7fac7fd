"""Script of each rank of test_parity.py. It runs one case after the other: MODELS OUT [CASE ...]."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.batch.train_batch import Sample, TrainBatch


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


@dataclass
class Case:
    model: str
    degrees: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    resumes: bool = False
    """Also saved, resumed and written for transformers."""

    def samples(self) -> list[Sample]:
        """Return the samples, in pairs if the loss compares them."""
        if self.options.get("loss") != "dpo":
            return samples()
        pairs = enumerate(samples()[:12])
        return [replace(sample, episode=n // 2, advantage=-1.0 if n % 2 else 1.0) for n, sample in pairs]

    def config(self, models: Path, **options: Any) -> LearnerConfig:
        """The update is then g / (|g| + 1), smooth in the gradient: equal weights mean equal gradients."""
        plain: dict[str, Any] = {"lr": 1.0, "eps": 1.0, "grad_clip": None, "token_budget": 60}
        plain["device"] = os.environ.get("AGENTLOOP_TEST_DEVICE", "cpu")
        return LearnerConfig(model=str(models / self.model), **(plain | self.options | options))


TP, PP, CP, EP = "tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"
VP = "virtual_pipeline"
CASES = {
    "dp4": Case("qwen3"),
    "tp2-dp2": Case("qwen3", {TP: 2}),
    "pp2-dp2": Case("qwen3", {PP: 2}, {"checkpointing": "full"}),
    "tp2-pp2": Case("qwen3", {TP: 2, PP: 2}, resumes=True),
    "cp2-tp2": Case("qwen3", {CP: 2, TP: 2}, {"loss": "gspo", "mini_batches": 2}),
    "cp2-pp2": Case("qwen3", {CP: 2, PP: 2}, {"corrections": ("truncate",), "token_budget": 130}),
    "cp2-tp2-dpo": Case("qwen3", {CP: 2, TP: 2}, {"loss": "dpo", "kl_coef": 0.1}),
    "qwen2-tp2-pp2": Case("qwen2", {TP: 2, PP: 2}, {"grad_clip": 0.1, "kl_coef": 0.1}),
    "pp2-vp2-dp2": Case("qwen3", {PP: 2, VP: 2}, {"loss": "gmpo", "checkpointing": "selective"}, resumes=True),
    "moe-pp2-vp2-tp2": Case("moe", {PP: 2, VP: 2, TP: 2}, {"checkpointing": "selective", "kl_coef": 0.1}),
    "moe-ep2-dp2": Case("moe", {EP: 2}),
    "moe-tp2-dp2": Case("moe", {TP: 2}),
    "moe-tp2-ep2-pp2": Case("moe", {TP: 2, EP: 2, PP: 2}, resumes=True),
}

ON_TWO = {
    "dp2": Case("qwen3"),
    "tp2": Case("qwen3", {TP: 2}, {"kl_coef": 0.1}),
    "pp2": Case("qwen3", {PP: 2}, {"checkpointing": "full"}, resumes=True),
    "pp2-vp2": Case("qwen2", {PP: 2, VP: 2}, {"checkpointing": "selective"}),
    "cp2": Case("qwen3", {CP: 2}, {"loss": "gspo"}),
    "qwen2-tp2": Case("qwen2", {TP: 2}, resumes=True),
    "moe-ep2": Case("moe", {EP: 2}),
    "moe-tp2-ep2": Case("moe", {TP: 2, EP: 2}),
}
"""For two GPUs."""


def step(learner: Any, case: Case, hf_folder: Path | None = None) -> dict[str, Any]:
    """Return the results of a step on one batch."""
    logprobs = [torch.from_numpy(part.copy()) for part in learner.logprobs(case.samples())]
    metrics = learner.step(TrainBatch(case.samples()))
    if hf_folder is not None:
        learner.save_hf(hf_folder)
    weights: dict[str, torch.Tensor] = {}
    messages: list[int] = []
    before: list[int] = []
    """Messages when each parameter came."""
    with _counted(messages):
        for name, value in learner.weights():
            weights[name] = value.clone()
            before.append(len(messages))
    return {"logprobs": logprobs, "metrics": metrics, "weights": weights, "messages": messages, "before": before}


@contextmanager
def _counted(messages: list[int]) -> Iterator[None]:
    """Number of elements in each message with which ranks gather a whole tensor."""
    gather, broadcast = dist.all_gather_into_tensor, dist.broadcast

    def gathers(output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        messages.append(output.numel())
        return gather(output, *args, **kwargs)

    def broadcasts(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        messages.append(tensor.numel())
        return broadcast(tensor, *args, **kwargs)

    with patch.object(dist, "all_gather_into_tensor", gathers), patch.object(dist, "broadcast", broadcasts):
        yield


def _resumed(make: Any, learner: Any, folder: Path) -> bool:
    """A learner that starts from what `learner` saved goes on with the same bits."""
    learner.save(folder)
    learner.step(TrainBatch(samples()[:7]))
    expected = {name: value.clone() for name, value in learner.weights()}
    other = make()
    other.load(folder)
    other.step(TrainBatch(samples()[:7]))
    return all(torch.equal(value, expected[name]) for name, value in other.weights())


def _parts(learner: Any) -> int:
    """Check that published weights equal the gathered ones. Return the number of parts, on the first rank."""
    shared = learner.share(on_host=False)
    expected = [(name, value.clone()) for name, value in learner.weights()]
    if shared is not None:
        assert [name for name, _ in shared.tensors()] == [name for name, _ in expected]
        for (_, found), (_, value) in zip(shared.tensors(), expected, strict=True):
            assert torch.equal(found.cpu(), value.cpu())  # parts lie on the GPUs of their ranks
    dist.barrier()  # the memory goes with its process
    return 0 if shared is None else len(shared.parts)


def main() -> None:
    from agentloop.trainer.learner.megatron.learner import MegatronLearner

    models, out = map(Path, sys.argv[1:3])
    for name in sys.argv[3:] or list(CASES):
        case = {**CASES, **ON_TWO}[name]

        def make(case: Case = case) -> MegatronLearner:
            return MegatronLearner(case.config(models, backend="megatron", **case.degrees))

        learner = make()
        found = step(learner, case, out / f"{name}-hf" if case.resumes else None)
        if case.resumes:
            found["resumed"] = _resumed(make, learner, out / f"{name}-state")
            found["parts"] = _parts(learner)
        torch.save(found, out / f"{name}-{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main()
