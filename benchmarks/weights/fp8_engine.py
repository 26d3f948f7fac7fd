"""Compare vLLM in FP8 with vLLM in bfloat16: sampled tokens a second, seconds of an update, log-probabilities.

    python -m benchmarks.weights.fp8_engine --model 4B                # both engines on one GPU, in turns

Both engines have the random weights of a learner of the same shape, caches of the same size, and are measured in
alternation. An update is everything from the learner's weights to an engine that samples with them; it runs with
requests in flight. The gap is the average difference of log-probabilities between an engine and a learner whose layers
multiply in bfloat16 or in FP8. `gpu_busy` is the share of the time in which a kernel ran. Random weights have small
logits: benchmarks.rollout.logprob_gap measures real ones.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentloop.config.learner import LearnerConfig
from agentloop.engines.base import Generation, SamplingParams
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from benchmarks import results_file
from benchmarks.learner.gpu_use import GpuUse
from benchmarks.learner.qwen3 import SHAPES, model_config, random_model

QUANTIZATIONS = {"bfloat16": None, "fp8": "fp8"}
SIZES = [1, 8, 16, 64, 128, 256]
"""Numbers of requests for which vLLM captures graphs."""


def engine_of(folder: Path, name: str, args: argparse.Namespace) -> VllmEngine:
    more: dict[str, Any] = {"distributed_executor_backend": args.executor} if args.executor else {}
    if args.profile:
        from vllm.config import ProfilerConfig

        more["profiler_config"] = ProfilerConfig(
            profiler="torch",
            torch_profiler_dir=str((args.profile / name).resolve()),
            torch_profiler_with_stack=False,
            ignore_frontend=True,
        )
    return VllmEngine(
        folder,
        quantization=QUANTIZATIONS[name],
        max_model_len=args.prompt + args.sampled,
        max_num_seqs=max(args.in_flight),
        gpu_memory_utilization=args.memory,
        kv_cache_memory_bytes=args.cache_gib << 30,
        shares_gpu=True,
        compilation_config={"cudagraph_capture_sizes": [size for size in SIZES if size <= max(args.in_flight)]},
        **more,
    )


def learner_of(folder: Path, fp8: str, args: argparse.Namespace) -> FsdpLearner:
    settings: dict[str, Any] = {"param_dtype": "bfloat16", "compute_dtype": "bfloat16", "compile_layers": False}
    return FsdpLearner(LearnerConfig(model=str(folder), fp8=fp8, attention=args.attention, **settings))


async def play(engine: VllmEngine, args: argparse.Namespace, in_flight: int, seed: int) -> list[Sample]:
    """Sample `waves` turns for each place in flight; prompts are random, so that none is cached."""
    rng = np.random.default_rng([in_flight, seed])
    free = asyncio.Semaphore(in_flight)

    async def turn(number: int, prompt: list[int]) -> Sample:
        async with free:
            params = SamplingParams(max_tokens=args.sampled)
            return sample_of(prompt, await engine.generate(prompt, params, trajectory_id=f"{number}"))

    prompts = rng.integers(0, args.vocabulary, (args.waves * in_flight, args.prompt))
    return await asyncio.gather(*(turn(number, prompt.tolist()) for number, prompt in enumerate(prompts)))


def sample_of(prompt: list[int], turn: Generation) -> Sample:
    ids = np.array([*prompt, *turn.ids], np.int32)
    mask = np.arange(len(ids)) >= len(prompt)
    logprobs = np.zeros(len(ids), np.float32)
    logprobs[mask] = turn.logprobs
    return Sample(ids, mask, logprobs, np.where(mask, 0, -1).astype(np.int32))


async def speeds(engines: dict[str, VllmEngine], args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for in_flight in args.in_flight:
        rates: dict[str, list[float]] = {name: [] for name in engines}
        busy: dict[str, list[float | None]] = {name: [] for name in engines}
        for repeat in range(args.repeats + 1):
            for name, engine in engines.items():
                started = time.perf_counter()
                with GpuUse() as gpu:
                    samples = await play(engine, args, in_flight, seed=repeat)
                rates[name].append(sum(s.num_sampled for s in samples) / (time.perf_counter() - started))
                busy[name].append(gpu.busy)
        medians = {name: statistics.median(rate[1:]) for name, rate in rates.items()}  # the first is a warm-up
        found[f"{in_flight}_in_flight"] = {
            "tokens_per_second": rates,
            "gpu_busy": busy,
            "fp8_over_bfloat16": medians["fp8"] / medians["bfloat16"],
        }
        print(in_flight, found[f"{in_flight}_in_flight"], flush=True)
    return found


async def profile(engines: dict[str, VllmEngine], args: argparse.Namespace) -> None:
    """Record the kernels of some decoding steps with the fewest requests in flight."""
    for engine in engines.values():
        running = asyncio.create_task(play(engine, args, min(args.in_flight), seed=0))
        await asyncio.sleep(0.5)
        await engine.llm.start_profile()
        await asyncio.sleep(0.5)
        assert not running.done(), "no request is in flight: sample more tokens"
        await engine.llm.stop_profile()
        await running


async def updates(engine: VllmEngine, learner: FsdpLearner, args: argparse.Namespace) -> dict[str, Any]:
    """Publish with requests in flight; the first update records what the others repeat."""
    seconds, ways = [], []
    for version in range(1, args.updates + 1):
        running = asyncio.create_task(play(engine, args, 16, seed=version))
        await asyncio.sleep(0.3)
        assert not running.done(), "no request is in flight: sample more tokens"
        started = time.perf_counter()
        await learner.publish(engine, version)
        seconds.append(time.perf_counter() - started)
        ways.append(engine.loads_by)
        await running
    return {"seconds": seconds, "loads_by": ways}


def gaps(folder: Path, samples: dict[str, list[Sample]], args: argparse.Namespace) -> dict[str, float]:
    """Return the average difference in nats for each learner and each engine."""
    found = {}
    for fp8 in ("off", "tensor", "row"):
        learner = learner_of(folder, fp8, args)
        for name, turns in samples.items():
            theirs = np.concatenate([turn.logprobs[turn.loss_mask] for turn in turns])
            error = np.abs(np.concatenate(learner.logprobs(turns)) - theirs)
            found[f"learner_{fp8}_engine_{name}"] = float(error.mean())
        del learner
        gc.collect()
        torch.cuda.empty_cache()
    return found


async def measure(folder: Path, args: argparse.Namespace, write: Callable[[dict[str, Any]], None]) -> None:
    engines = {name: engine_of(folder, name, args) for name in QUANTIZATIONS}
    result: dict[str, Any] = {}
    started = time.perf_counter()
    try:
        await asyncio.gather(*(engine.start() for engine in engines.values()))
        result["start_seconds"] = time.perf_counter() - started
        learner = learner_of(folder, "off", args)
        result["updates"] = {name: await updates(engine, learner, args) for name, engine in engines.items()}
        write(result)
        result["speed"] = await speeds(engines, args)
        write(result)
        if args.profile:
            await profile(engines, args)
        samples = {name: await play(engine, args, args.scored // args.waves, 99) for name, engine in engines.items()}
    finally:
        await asyncio.gather(*(engine.close() for engine in engines.values()))
    del learner
    result["gap"] = gaps(folder, samples, args)
    write(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="4B")
    parser.add_argument("--executor", choices=["uni", "mp"], help="executor of vLLM instead of the default")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--sampled", type=int, default=256)
    parser.add_argument("--waves", type=int, default=2, help="turns for each place in flight")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--scored", type=int, default=64, help="turns whose log-probabilities are compared")
    parser.add_argument("--memory", type=float, default=0.36, help="share of the GPU for each engine")
    parser.add_argument("--cache-gib", type=int, default=14, help="keys and values of each engine")
    parser.add_argument("--attention", default="auto", help="of the learners")
    parser.add_argument("--profile", type=Path, help="folder for tables of kernels, by engine")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    args.vocabulary = model_config(args.model).vocab_size
    settings = {key: value for key, value in vars(args).items() if key not in ("folder", "profile")}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None

    def write(result: dict[str, Any]) -> None:
        results_file.write(f"fp8_engine_{args.model}", settings | result, gpu=gpu)

    asyncio.run(measure(random_model(args.model, args.folder), args, write))


if __name__ == "__main__":
    main()
