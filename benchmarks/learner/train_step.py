"""Measure speed and memory of a training step for several backends and layouts, at Qwen3 shapes with random weights.

    python -m benchmarks.learner.train_step --model 0.6B --trained 0.25
    python -m benchmarks.learner.train_step --layouts fsdp fsdp,checkpointing=full fsdp,offload=optimizer
    python -m benchmarks.learner.train_step --layouts fsdp fsdp,lora.rank=32 --name train_step_lora
    python -m benchmarks.learner.train_step --ranks 2 --layouts fsdp megatron megatron,tp2 megatron,pp2

A layout is a backend, degrees of parallelism and settings of `learner`. A step is everything from a batch of
trajectories to changed weights: planning, packing, forward, backward, clipping, optimizer. Lengths are lognormal, the
trained tokens of a sequence its last ones. MFU counts the necessary FLOPs, without recomputation;
`mfu_full_head` counts the head at all tokens, as most published figures do. Memory is the peak of tensors on the rank
that has most. `estimated_gib` is the estimate of `agentloop plan` for the layout and the largest row of the step.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.cluster import process_group
from agentloop.trainer.cluster.process_group import Rendezvous, data_parallel_mesh, pick_device
from agentloop.trainer.learner.base_learner import BaseLearner
from agentloop.trainer.sizing.layouts import Layout
from agentloop.trainer.sizing.memory import training_memory
from agentloop.trainer.sizing.model_shape import ModelShape
from benchmarks import results_file
from benchmarks.learner.qwen3 import PEAK, SHAPES, batch_of, flops, lengths_of, model_config, random_model

_DEGREES = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "cp": "context_parallel", "ep": "expert_parallel"}


def config_of(layout: str, args: argparse.Namespace) -> LearnerConfig:
    """Parse a layout such as 'megatron,tp2,checkpointing=full'."""
    backend, *parts = layout.split(",")
    options: dict[str, Any] = {}
    for part in parts:
        if found := re.fullmatch(r"([a-z]p)(\d+)", part):
            options[_DEGREES[found[1]]] = int(found[2])
        else:
            name, _, value = part.partition("=")
            *outer, last = name.split(".")
            inner = options
            for key in outer:
                inner = inner.setdefault(key, {})
            inner[last] = value
    plain = {
        "model": str(random_model(args.model, args.folder)),
        "backend": backend,
        "compute_dtype": "bfloat16" if args.device == "cuda" else "float32",
        "token_budget": args.token_budget,
        "device": args.device,
    }
    return LearnerConfig.model_validate(plain | options)


def make(config: LearnerConfig) -> BaseLearner:
    if config.backend == "megatron":
        from agentloop.trainer.learner.megatron.learner import MegatronLearner

        return MegatronLearner(config)
    from agentloop.trainer.learner.fsdp.learner import FsdpLearner

    return FsdpLearner(config)


def measure(learner: BaseLearner, batch: TrainBatch, steps: int, *, before: int = 0) -> dict[str, Any]:
    """Return the median seconds of `steps` after two warm-up steps, and the largest peak of memory of a rank.

    The first step compiles. The peak excludes the `before` bytes that were allocated before the learner.
    """
    seconds, last = [], {}
    is_cuda = torch.cuda.is_available()
    for number in range(steps + 2):
        if number == 2 and is_cuda:
            torch.cuda.reset_peak_memory_stats()
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.barrier()
        start = time.perf_counter()
        last = learner.step(batch)
        if is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    most = torch.tensor([torch.cuda.max_memory_allocated() - before if is_cuda else 0, learner.largest_row])
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
    peak, largest_row = most.tolist()
    return {
        "first_step_seconds": seconds[0],
        "step_seconds": sorted(seconds[2:])[steps // 2],
        "all_seconds": seconds,
        "last_phases": {name: value for name, value in last.items() if name.startswith("seconds/")},
        "loss": last["loss"],
        "grad_norm": last["grad_norm"],
        "computed_tokens": last["computed_tokens"],
        "memory_peak_gib": peak / 2**30,
        "largest_row": largest_row,
    }


def measure_layout(layout: str, args: argparse.Namespace, lengths: list[int], ranks: int) -> list[dict[str, Any]]:
    """Return a result for each share of trained tokens; out of memory is a result, too."""
    config, vocab = config_of(layout, args), model_config(args.model).vocab_size
    gc.collect()
    before = 0
    if args.device == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
    try:
        learner = make(config)
        lines = []
        for trained in args.trained:
            batch = batch_of(lengths, trained, vocab=vocab)
            line = measure(learner, batch, args.steps, before=before)
            if args.profile:
                line["kernel_seconds"] = profile(learner, batch, args.profile)
            lines.append({"layout": layout} | line | derived(line, config, batch, lengths, ranks, args.model))
    except torch.cuda.OutOfMemoryError as error:
        assert ranks == 1, "other ranks would wait"
        return [{"layout": layout, "out_of_memory": str(error)}] * len(args.trained)
    except UserError as error:
        return [{"layout": layout, "refused": str(error)}] * len(args.trained)
    return lines


def derived(
    line: dict[str, Any], config: LearnerConfig, batch: TrainBatch, lengths: list[int], ranks: int, model: str
) -> dict[str, float]:
    """Return the speeds that follow from the seconds of a step, and the estimate of its memory."""
    hf_config = model_config(model)
    of = replace(Layout.of(config, ranks), token_budget=line["largest_row"])
    once = ranks > 1 and config.gather_once is not False
    rank = config.lora.rank if config.lora else 0
    estimate = training_memory(ModelShape.from_config(hf_config), of, gather_once=once, lora_rank=rank)
    speed, is_frozen = 1 / line["step_seconds"] / ranks / PEAK, rank > 0
    return {
        "estimated_gib": estimate.total / 2**30,
        "tokens_per_second": batch.num_tokens / line["step_seconds"],
        "mfu": flops(hf_config, lengths, batch.num_sampled, is_frozen=is_frozen) * speed,
        "mfu_full_head": flops(hf_config, lengths, batch.num_tokens, is_frozen=is_frozen) * speed,
    }


_KINDS = {
    "attention": ("flash", "fmha"),
    "matrix products": ("gemm", "nvjet", "cutlass", "splitk", "xmma"),
    "softmax of the head": ("_statistics", "_gradient"),
    "optimizer and clipping": ("multi_tensor", "adam", "lpnorm"),
    "elementwise, compiled": ("triton_",),
    "copies": ("memcpy", "memset"),
}
"""Parts of kernel names by kind; the first kind that matches counts."""


def profile(learner: BaseLearner, batch: TrainBatch, path: Path | None) -> dict[str, float]:
    """Return seconds of one more step by kind of kernel, and idle seconds. Write a table of all kernels to `path`."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        start = time.perf_counter()  # the profiler has started
        learner.step(batch)
        torch.cuda.synchronize()
        whole = time.perf_counter() - start
    kernels = found.key_averages()
    if path is not None:
        path.write_text(kernels.table(sort_by="self_cuda_time_total", row_limit=60, max_name_column_width=90))
    seconds = dict.fromkeys([*_KINDS, "other kernels"], 0.0)
    for kernel in kernels:
        name = kernel.key.lower()
        kind = next((kind for kind, parts in _KINDS.items() if any(p in name for p in parts)), "other kernels")
        seconds[kind] += kernel.self_device_time_total / 1e6
    return seconds | {"no kernel": whole - sum(seconds.values())}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="0.6B")
    parser.add_argument("--backend", choices=["fsdp", "megatron"], default="fsdp", help="if no layouts are given")
    parser.add_argument("--layouts", nargs="+")
    parser.add_argument("--ranks", type=int, default=1, help="processes, each on a GPU of its own")
    parser.add_argument("--trained", type=float, nargs="+", default=[0.25], help="shares of trained tokens")
    parser.add_argument("--tokens", type=int, default=131072, help="tokens of a step, over all ranks")
    parser.add_argument("--median", type=float, default=2000)
    parser.add_argument("--sigma", type=float, default=0.8)
    parser.add_argument("--cap", type=int, default=8192)
    parser.add_argument("--token-budget", type=int, default=32768)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--name", help="name of the result, before _25")
    parser.add_argument("--profile", type=Path, help="write a table of the kernels of one more step here")
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.ranks == 1:
        measure_all(args)
        return
    store = process_group.listen(args.ranks)
    rendezvous = Rendezvous(process_group.THIS_HOST, store.port, args.ranks, pick_device(args.device).type)
    multiprocessing.spawn(run_rank, (rendezvous, args), nprocs=args.ranks)


def run_rank(rank: int, rendezvous: Rendezvous, args: argparse.Namespace) -> None:
    process_group.join(rank, rendezvous, gpu=rank)
    measure_all(args)


def measure_all(args: argparse.Namespace) -> None:
    """Measure the layouts on all ranks, of which this is one."""
    ranks = data_parallel_mesh(pick_device(args.device)).size()
    if dist.get_rank() == 0:
        random_model(args.model, args.folder)
    if ranks > 1:
        dist.barrier()
    lengths = lengths_of(args.tokens, args.median, args.sigma, args.cap)
    results = [
        {
            "model": args.model,
            "gpus": ranks,
            "options": {key: str(value) for key, value in vars(args).items()},
            "sequences": len(lengths),
            "tokens": batch.num_tokens,
            "trained_tokens": batch.num_sampled,
            "longest": max(lengths),
            "layouts": [],
        }
        for batch in (batch_of(lengths, trained) for trained in args.trained)
    ]
    name = args.name or f"train_step_{args.model}"
    for layout in args.layouts or [args.backend]:
        lines = measure_layout(layout, args, lengths, ranks)
        for trained, result, line in zip(args.trained, results, lines, strict=True):
            result["layouts"].append(line)
            if dist.get_rank() == 0:
                print(json.dumps(line), flush=True)
                gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
                file = f"{name}_{round(trained * 100)}" + (f"_{ranks}gpus" if ranks > 1 else "")
                print(results_file.write(file, result, gpu=gpu))  # keep this result if a later one fails
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
