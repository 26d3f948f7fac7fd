"""Measure the speedup of shared prompts: steps with and without sharing, beside the ratio of their tokens.

    python -m benchmarks.learner.shared_prefix --model 0.6B [--cases 2048,2048,8 4096,1024,8 ...]

A case is prompt, response, group size (P, R, G); all tokens of the responses are trained. `ideal` is the
token ratio G(P + R) / (P + G R), and `flop_ideal` the ratio of FLOPs. The head and the attention of responses to the
prompt are not shared.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from benchmarks import results_file
from benchmarks.learner.qwen3 import SHAPES, VOCAB, flops, model_config, random_model
from benchmarks.learner.train_step import measure


def groups(prompt: int, response: int, size: int, count: int) -> TrainBatch:
    rng = np.random.default_rng(0)
    mask = np.arange(prompt + response) >= prompt
    samples = []
    for group in range(count):
        shared = rng.integers(0, VOCAB, prompt)
        for _ in range(size):
            samples.append(
                Sample(
                    token_ids=np.concatenate([shared, rng.integers(0, VOCAB, response)]).astype(np.int32),
                    loss_mask=mask,
                    logprobs=np.where(mask, -12.0, 0).astype(np.float32),
                    versions=np.where(mask, 0, -1).astype(np.int32),
                    advantage=float(rng.normal()),
                    group_id=str(group),
                )
            )
    return TrainBatch(samples)


def needed(model: str, prompt: int, response: int, size: int, *, share: bool) -> float:
    """Return the FLOPs of one group. The head and the attention of responses cost the same with and without sharing."""
    config = model_config(model)
    separate = flops(config, [prompt + response] * size, size * response)
    if not share:
        return separate
    once, without_head = flops(config, [prompt], 0), flops(config, [prompt] * size, 0)
    return separate - without_head + once


def steps(args: argparse.Namespace, cases: list[tuple[int, ...]], *, share: bool) -> list[dict[str, Any]]:
    """Return the result of `measure` for each case."""
    learner = FsdpLearner(
        LearnerConfig(
            model=str(random_model(args.model, args.folder)),
            compute_dtype="bfloat16",
            token_budget=args.token_budget,
            share_prefixes=share,
        )
    )
    found = []
    for prompt, response, size in cases:
        count = max(1, args.tokens // (size * (prompt + response)))
        found.append(measure(learner, groups(prompt, response, size, count), args.steps))
    del learner
    gc.collect()
    torch.cuda.empty_cache()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="0.6B")
    parser.add_argument("--cases", nargs="+", default=["2048,2048,8", "4096,1024,8", "8192,1024,8"])
    parser.add_argument("--token-budget", type=int, default=32768)
    parser.add_argument("--tokens", type=int, default=131072, help="approximate tokens of a step without sharing")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    cases = [tuple(map(int, case.split(","))) for case in args.cases]
    plain_steps, shared_steps = (steps(args, cases, share=share) for share in (False, True))
    rows: list[dict[str, Any]] = []
    for (prompt, response, size), plain, shared in zip(cases, plain_steps, shared_steps, strict=True):
        ideal = size * (prompt + response) / (prompt + size * response)
        flop_ideal = needed(args.model, prompt, response, size, share=False) / needed(
            args.model, prompt, response, size, share=True
        )
        speedup = plain["step_seconds"] / shared["step_seconds"]
        row = {
            "prompt": prompt,
            "response": response,
            "group": size,
            "ideal": ideal,
            "flop_ideal": flop_ideal,
            "speedup": speedup,
            "of_ideal": speedup / ideal,
            "of_flop_ideal": speedup / flop_ideal,
            "plain": plain,
            "shared": shared,
        }
        rows.append(row)
        print({key: value for key, value in row.items() if key not in ("plain", "shared")}, flush=True)
        print({name: (found["loss"], found["grad_norm"]) for name, found in (("plain", plain), ("shared", shared))})
    result = {"model": args.model, "token_budget": args.token_budget, "cases": rows}
    print(results_file.write(f"shared_prefix_{args.model}", result, gpu=torch.cuda.get_device_name()))


if __name__ == "__main__":
    main()
