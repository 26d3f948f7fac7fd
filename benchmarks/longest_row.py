"""The longest packed row that one GPU can train on, and how fast it is there: agentloop, or verl on the same card.

    python benchmarks/longest_row.py --model 4B --checkpointing full sparse
    PYTHONPATH=<verl 0.9.1 and its dependencies> python benchmarks/longest_row.py --engine verl --fused triton

A step is one micro-batch: all tokens in one row of sequences with lognormal lengths, the last quarter of each trained.
The peak of two short rows says how much memory a token takes, and so which row should just fit: a little less is tried,
and where memory does not do, 3 % less, until a row fits. The first step, which makes the state of the optimizer and
compiles, is not timed. Tokens a second are of one step.
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

import results_file
import torch
from qwen3 import SHAPES, batch_of, lengths_of, model_config, random_model

from agentloop.trainer.batch import TrainBatch
from agentloop.trainer.planning.layouts import Layout
from agentloop.trainer.planning.memory import training_memory
from agentloop.trainer.planning.model_shape import ModelShape

Step = Callable[[TrainBatch], float]
"""Returns the norm of the gradient."""
_ANY = 10**9
"""Token budget that no row reaches."""
_SHARE = 0.985
"""Of the row that should just fit: what is tried first."""
_LESS = 0.97


class Agentloop:
    """Its modes are kinds of checkpointing; the learner is the same for all."""

    def __init__(self, args: argparse.Namespace) -> None:
        from agentloop.trainer.backends.fsdp import FsdpLearner
        from agentloop.trainer.learner import LearnerConfig

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
        from agentloop.trainer.backends import layers

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
    """One row; a line of the result."""
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


def fitting(first: dict[str, Any], second: dict[str, Any]) -> int:
    """Tokens of the row that should just fit, if the peak grows as it did between two rows."""
    free, _ = torch.cuda.mem_get_info()
    whole = (free + torch.cuda.memory_reserved()) / 2**30
    per_token = (second["memory_peak_gib"] - first["memory_peak_gib"]) / (second["tokens"] - first["tokens"])
    return int(second["tokens"] + (whole - second["memory_peak_gib"]) / per_token)


def search(step: Step, mode: str, args: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> None:
    """All rows of one mode, one after the other, each given to `keep`."""

    def tried(tokens: int) -> dict[str, Any]:
        line = {"mode": mode} | attempt(step, tokens, args)
        if args.engine == "agentloop":
            line["estimated_gib"] = estimated_gib(tokens, mode, args)
        keep(line)
        return line

    attempt(step, 2048, args)
    attempt(step, min(args.probe), args)
    lines = [tried(tokens) for tokens in args.probe]
    if not torch.cuda.is_available():
        return
    should_fit = fitting(*lines)
    keep({"mode": mode, "should_just_fit": should_fit})
    if mode in args.probe_only:
        return
    tokens = min(round(_SHARE * should_fit), args.most)
    while not tried(tokens // 128 * 128)["fits"]:
        tokens = round(_LESS * tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["agentloop", "verl"], default="agentloop")
    parser.add_argument("--model", choices=SHAPES, default="4B")
    parser.add_argument("--probe", type=int, nargs=2, default=[32768, 65536], help="tokens of the two short rows")
    parser.add_argument("--most", type=int, default=480_000, help="beyond it 32-bit indices of attention run out")
    parser.add_argument("--checkpointing", nargs="+", default=["full"])
    parser.add_argument("--probe-only", nargs="*", default=[], help="kinds of which no long row is tried")
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

    engine = {"agentloop": Agentloop, "verl": Verl}[args.engine](args)
    for mode in args.checkpointing:
        search(engine.step_in(mode), mode, args, keep)


if __name__ == "__main__":
    main()
