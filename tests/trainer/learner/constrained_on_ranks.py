"""Script of each rank of test_constrained_layouts.py: FOLDER, which has the trajectories and gets the results."""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.types.trajectory_io import read_jsonl
from tests.trainer.learner.test_constrained_turns import config, samples_of

CASES = {
    "data_parallel": {},
    "sequence_parallel": {"sequence_parallel": 2},
    "megatron-data_parallel": {"backend": "megatron"},
    "megatron-tensor_parallel": {"backend": "megatron", "tensor_parallel": 2},
    "megatron-pipeline_parallel": {"backend": "megatron", "pipeline_parallel": 2},
    "megatron-context_parallel": {"backend": "megatron", "context_parallel": 2},
}


def main() -> None:
    from agentloop.trainer.learner.fsdp.learner import FsdpLearner
    from agentloop.trainer.learner.megatron.learner import MegatronLearner

    folder = Path(sys.argv[1])
    samples = samples_of(list(read_jsonl(folder / "turns.jsonl")))
    for name, options in CASES.items():
        learner = (MegatronLearner if "backend" in options else FsdpLearner)(config(ranks=2, **options))
        logprobs = learner.logprobs(samples)
        learner.step(TrainBatch(samples))
        weights = {key: value.clone() for key, value in learner.weights()}
        torch.save(
            [[torch.from_numpy(each.copy()) for each in logprobs], weights], folder / f"{name}-{dist.get_rank()}.pt"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main()
