"""The longest packed row that one GPU can train on, and how fast it is there: agentloop, or verl on the same card.

    python benchmarks/longest_row.py --model 4B --checkpointing full --try 300000 330000 360000
    PYTHONPATH=<verl 0.9.1 and its dependencies> python benchmarks/longest_row.py --engine verl --fused --try 60000 ...

A step is one micro-batch: all tokens in one row of sequences with lognormal lengths, the last quarter of each trained.
The rows given are tried one after the other until memory does not do; the first step, which also makes the state of the
optimizer, is not timed.
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

Step = Callable[[TrainBatch], Any]
_ANY = 10**9
"""Token budget that no row reaches."""


def agentloop_step(args: argparse.Namespace) -> Step:
    from agentloop.trainer.backends.fsdp import FsdpLearner
    from agentloop.trainer.learner import LearnerConfig

    learner = FsdpLearner(
        LearnerConfig(
            model=str(random_model(args.model, args.folder)),
            compute_dtype="bfloat16" if args.device == "cuda" else "float32",
            token_budget=_ANY,
            checkpointing=args.checkpointing,
            offload=args.offload,
            device=args.device,
        )
    )
    return learner.step


def verl_engine_step(args: argparse.Namespace) -> Step:
    import verl_step

    verl_step.prepare()
    own = argparse.Namespace(
        token_budget=_ANY, fused=args.fused, attention="agentloop_kernel", checkpointing=args.checkpointing != "off"
    )
    engine, loss = verl_step.build_engine(own, random_model(args.model, args.folder))

    def step(batch: TrainBatch) -> None:
        data = verl_step.tensors(batch, own)
        with engine.train_mode():
            engine.train_batch(data, loss_function=loss)

    return step


def attempt(step: Step, tokens: int, args: argparse.Namespace, *, is_first: bool) -> dict[str, Any]:
    """One row; a line of the result."""
    vocab = model_config(args.model).vocab_size
    batch = batch_of(lengths_of(tokens, args.median, 0.8, args.cap), 0.25, vocab=vocab)
    is_cuda = torch.cuda.is_available()
    try:
        if is_first:
            step(batch_of([2048], 0.25, vocab=vocab))
        if is_cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        step(batch)
        if is_cuda:
            torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError as error:
        return {"tokens": tokens, "fits": False, "says": str(error)[:200]}
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() / 2**30 if is_cuda else None
    return {"tokens": tokens, "fits": True, "tokens_per_second": tokens / seconds, "memory_peak_gib": peak}


def estimated_gib(tokens: int, args: argparse.Namespace) -> float:
    layout = Layout(checkpointing=args.checkpointing, offload=args.offload, token_budget=tokens)  # type: ignore[arg-type]
    return training_memory(ModelShape.from_config(model_config(args.model)), layout, micro_batches=1).total / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["agentloop", "verl"], default="agentloop")
    parser.add_argument("--model", choices=SHAPES, default="4B")
    parser.add_argument("--try", type=int, nargs="+", required=True, dest="rows", help="tokens, ascending")
    parser.add_argument("--checkpointing", default="full")
    parser.add_argument("--offload", default="off")
    parser.add_argument("--fused", action="store_true", help="verl's fused LM head")
    parser.add_argument("--median", type=float, default=2000)
    parser.add_argument("--cap", type=int, default=8192)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    make = {"agentloop": agentloop_step, "verl": verl_engine_step}[args.engine]
    result: dict[str, Any] = {"options": {key: str(value) for key, value in vars(args).items()}, "rows": []}
    parts = [args.engine, "fused" if args.fused else "", args.checkpointing]
    parts.append("" if args.offload == "off" else f"offload_{args.offload}")
    name = "_".join(["longest_row", args.model, *filter(None, parts)])
    step = make(args)
    for number, tokens in enumerate(args.rows):
        line = attempt(step, tokens, args, is_first=number == 0)
        if args.engine == "agentloop":
            line["estimated_gib"] = estimated_gib(tokens, args)
        result["rows"].append(line)
        print(json.dumps(line), flush=True)
        results_file.write(name, result, gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None)
        if not line["fits"]:
            break
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
