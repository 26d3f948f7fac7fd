"""Find the longest packed row that one GPU can train on, and its speed: agentloop, or verl on the same GPU.

    python -m benchmarks.learner.longest_row --model 4B --checkpointing full sparse
    PYTHONPATH=<verl 0.9.1 and its dependencies> python -m benchmarks.learner.longest_row --engine verl --fused triton

A step is one micro-batch: all tokens in one row of sequences with lognormal lengths, the last quarter of each trained.
Rows become longer until memory runs out, then a bisection follows. A row of a quarter of a million tokens takes half a
minute, so set `--first` near the expected length. The first steps create the optimizer state and compile, and are not
timed. Tokens per second are those of one step.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.sizing.layouts import Layout
from agentloop.trainer.sizing.memory import training_memory
from agentloop.trainer.sizing.model_shape import ModelShape
from benchmarks import results_file
from benchmarks.learner.qwen3 import SHAPES, batch_of, lengths_of, model_config, random_model

Step = Callable[[TrainBatch], float]
"""Run a step and return the norm of the gradient."""
_ANY = 10**9
"""Token budget above any row."""
_CLOSE = 1.05
"""Stop when the shortest row that fails is at most this many times the longest that fits."""
_SHORTEST = 4096


class Agentloop:
    """agentloop. Its modes are kinds of checkpointing, and the learner is the same for all."""

    def __init__(self, args: argparse.Namespace) -> None:
        from agentloop.config.learner import LearnerConfig
        from agentloop.trainer.learner.fsdp.learner import FsdpLearner

        self._learner = FsdpLearner(
            LearnerConfig(
                model=str(random_model(args.model, args.folder)),
                compute_dtype="bfloat16" if args.device == "cuda" else "float32",
                token_budget=_ANY,
                checkpointing=args.checkpointing[0],
                offload=args.offload,
                device=args.device,
            )
        )

    def step_in(self, mode: str) -> Step:
        from agentloop.trainer.model import layers

        layers.prepare(self._learner.policy.layers(), mode, compiled=torch.cuda.is_available())  # type: ignore[arg-type]
        return lambda batch: self._learner.step(batch)["grad_norm"]


class Verl:
    def __init__(self, args: argparse.Namespace) -> None:
        import verl_step

        verl_step.prepare()
        self._tensors = verl_step.tensors
        self._args = argparse.Namespace(
            token_budget=_ANY,
            fused=args.fused,
            attention="agentloop_kernel",
            checkpointing=args.checkpointing[0] != "off",
            activation_offload=args.offload == "activations",
        )
        self._engine, self._loss = verl_step.build_engine(self._args, random_model(args.model, args.folder))

    def step_in(self, mode: str) -> Step:
        def step(batch: TrainBatch) -> float:
            with self._engine.train_mode():
                output = self._engine.train_batch(self._tensors(batch, self._args), loss_function=self._loss)
            return float(output["metrics"]["grad_norm"])

        return step


def attempt(step: Step, tokens: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one row and return a line of the result."""
    batch = batch_of(lengths_of(tokens, args.median, 0.8, args.cap), 0.25, vocab=model_config(args.model).vocab_size)
    is_cuda = torch.cuda.is_available()
    gc.collect()
    if is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    try:
        norm = step(batch)
        if is_cuda:
            torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError as error:
        return {"tokens": tokens, "fits": False, "says": str(error)[:300]}
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() / 2**30 if is_cuda else None
    speed = tokens / seconds
    return {"tokens": tokens, "fits": True, "tokens_per_second": speed, "memory_peak_gib": peak, "grad_norm": norm}


def estimated_gib(tokens: int, mode: str, args: argparse.Namespace) -> float:
    layout = Layout(checkpointing=mode, offload=args.offload, token_budget=tokens)  # type: ignore[arg-type]
    return training_memory(ModelShape.from_config(model_config(args.model)), layout, micro_batches=1).total / 2**30


def search(try_row: Callable[[int], bool], first: int, most: int) -> None:
    """Double the row until one does not fit or `most` does, then bisect until the bounds are `_CLOSE`."""
    low, high = 0, most * 2
    tokens = first
    while True:
        if try_row(tokens):
            low = tokens
        else:
            high = tokens
        if low >= most or (low and high <= _CLOSE * low) or high < _SHORTEST:
            return
        tokens = min(2 * low, most) if high > most else (low + high) // 2
        tokens = tokens // 128 * 128 or 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["agentloop", "verl"], default="agentloop")
    parser.add_argument("--model", choices=SHAPES, default="4B")
    parser.add_argument("--first", type=int, default=131_072, help="tokens of the first row")
    parser.add_argument("--most", type=int, default=480_000, help="tokens of the longest row to try")
    parser.add_argument("--checkpointing", nargs="+", default=["full"])
    parser.add_argument("--offload", default="off", help="of agentloop; for verl off or activations")
    parser.add_argument("--fused", choices=["triton", "torch"], help="verl's fused LM head")
    parser.add_argument("--median", type=float, default=2000)
    parser.add_argument("--cap", type=int, default=8192)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    result: dict[str, Any] = {"options": {key: str(value) for key, value in vars(args).items()}, "rows": []}
    parts = [args.engine, "fused" if args.fused else "", *args.checkpointing]
    parts.append("" if args.offload == "off" else f"offload_{args.offload}")
    name = "_".join(["longest_row", args.model, *filter(None, parts)])

    def keep(line: dict[str, Any]) -> None:
        result["rows"].append(line)
        print(json.dumps(line), flush=True)
        results_file.write(name, result, gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None)

    engine: Agentloop | Verl = Agentloop(args) if args.engine == "agentloop" else Verl(args)
    for mode in args.checkpointing:
        step = engine.step_in(mode)

        def try_row(tokens: int, step: Step = step, mode: str = mode) -> bool:
            line = {"mode": mode} | attempt(step, tokens, args)
            if args.engine == "agentloop":
                line["estimated_gib"] = estimated_gib(tokens, mode, args)
            keep(line)
            return bool(line["fits"])

        for tokens in (2048, 32768):
            attempt(step, min(tokens, args.first), args)
        search(try_row, args.first, args.most)


if __name__ == "__main__":
    main()
