"""Speed and memory of a training step on megatron-core, beside FSDP on the same GPUs, and how near the estimates are.

    torchrun --nproc-per-node 2 benchmarks/megatron_step.py --layouts fsdp megatron megatron,tp2 megatron,pp2,full

Batches, shapes and the count of FLOPs are those of train_step.py. Memory is the peak of the rank that has most.
`estimated_gib` is what `agentloop plan` says of the layout.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import results_file
import torch
import torch.distributed as dist
from train_step import PEAK, SHAPES, batch_of, flops, lengths_of, model_config, random_model

from agentloop.trainer.backends.planned import PlannedLearner
from agentloop.trainer.backends.process_group import data_parallel_mesh, pick_device
from agentloop.trainer.batch import TrainBatch
from agentloop.trainer.learner import LearnerConfig
from agentloop.trainer.planning.layouts import Layout
from agentloop.trainer.planning.memory import training_memory
from agentloop.trainer.planning.model_shape import ModelShape

_DEGREES = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "cp": "context_parallel", "ep": "expert_parallel"}


def config_of(layout: str, args: argparse.Namespace) -> LearnerConfig:
    """Of 'megatron,tp2,full'."""
    backend, *parts = layout.split(",")
    options: dict[str, Any] = {}
    for part in parts:
        if found := re.fullmatch(r"([a-z]p)(\d+)", part):
            options[_DEGREES[found[1]]] = int(found[2])
        else:
            options["checkpointing"] = part
    return LearnerConfig(
        model=str(random_model(args.model, args.folder)),
        backend=backend,  # type: ignore[arg-type]
        compute_dtype="bfloat16",
        token_budget=args.token_budget,
        attention=args.attention,
        **options,
    )


def make(config: LearnerConfig) -> PlannedLearner:
    if config.backend == "megatron":
        from agentloop.trainer.backends.megatron.learner import MegatronLearner

        return MegatronLearner(config)
    from agentloop.trainer.backends.fsdp import FsdpLearner

    return FsdpLearner(config)


def measure(config: LearnerConfig, batch: TrainBatch, steps: int) -> dict[str, Any]:
    """Median seconds of `steps` after one that warms up; the peak of the largest rank."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    learner = make(config)
    seconds = []
    for _ in range(steps + 1):
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        metrics = learner.step(batch)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = torch.tensor(torch.cuda.max_memory_allocated() - before, dtype=torch.float64, device="cuda")
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    return {
        "first_step_seconds": seconds[0],
        "step_seconds": sorted(seconds[1:])[steps // 2],
        "memory_peak_gib": peak.item() / 2**30,
        "loss": metrics["loss"],
        "grad_norm": metrics["grad_norm"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="0.6B")
    parser.add_argument("--layouts", nargs="+", default=["fsdp", "megatron", "megatron,tp2", "megatron,pp2"])
    parser.add_argument("--tokens", type=int, default=131072, help="of a step")
    parser.add_argument("--trained", type=float, default=0.25)
    parser.add_argument("--token-budget", type=int, default=16384)
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    ranks = data_parallel_mesh(pick_device("cuda")).size()
    if dist.get_rank() == 0:
        random_model(args.model, args.folder)
    dist.barrier()
    hf_config = model_config(args.model)
    lengths = lengths_of(args.tokens, 2000, 0.8, 8192)
    batch = batch_of(lengths, args.trained)
    rows = []
    for layout in args.layouts:
        config = config_of(layout, args)
        found = measure(config, batch, args.steps)
        of = Layout.of(config, ranks)
        each = max(round(args.tokens / of.data / args.token_budget), 1)
        estimate = training_memory(ModelShape.from_config(hf_config), of, micro_batches=each)
        per_gpu = flops(hf_config, lengths, batch.num_sampled) / found["step_seconds"] / ranks
        found |= {"layout": layout, "mfu": per_gpu / PEAK, "estimated_gib": estimate.total / 2**30}
        found["tokens_per_second"] = batch.num_tokens / found["step_seconds"]
        rows.append(found)
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    if dist.get_rank() == 0:
        options = {key: str(value) for key, value in vars(args).items()}
        result = {"model": args.model, "gpus": ranks, "options": options, "layouts": rows}
        print(results_file.write(f"megatron_step_{args.model}_{ranks}", result, gpu=torch.cuda.get_device_name()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
