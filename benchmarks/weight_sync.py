"""How long an engine stands still for new weights: from the last token of the old ones to the first of the new ones.

    python benchmarks/weight_sync.py --shapes 0.6B 4B 8B      # one or two GPUs
    python benchmarks/weight_sync.py --shapes tiny            # a CPU

The engine runs vLLM with random weights of the shape of a Qwen3 model and has requests in flight all the time. The
learner's side are the same parameters in float32 on the engine's GPU, and on each other one, cast to bfloat16 one by
one as `FsdpLearner` gives them. `fill_seconds` is their way onto the shelf, while the engine samples; `pause_seconds`
the longest time between two outputs of the engine around the update, `step_seconds` the usual one. The first update
of each kind, which maps the memory and loads with vLLM's loader, is `first`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import results_file
import torch
from qwen3 import empty_model

from agentloop.engines import SamplingParams
from agentloop.engines.shared_weights import WeightShelf
from agentloop.engines.vllm import VllmEngine

LIMITS = {"0.6B": 0.0032, "4B": 0.0217, "8B": 0.044}
"""Seconds at 370 GB/s, what NCCL reaches between two H200."""


class Outputs:
    """When the engine's outputs came."""

    def __init__(self, engine: VllmEngine) -> None:
        self.times: list[float] = []
        processor = engine._llm.output_processor
        process = processor.process_outputs

        def noted(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if any(output.new_token_ids for output in outputs):
                self.times.append(time.perf_counter())
            return process(outputs, *args, **kwargs)

        processor.process_outputs = noted

    def gaps(self, start: float, end: float) -> list[float]:
        """Between outputs, from the last one before `start` to the first one after `end`."""
        first = max((t for t in self.times if t <= start), default=start)
        last = min((t for t in self.times if t >= end), default=end)
        times = [t for t in self.times if first <= t <= last]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


def parameters(folder: Path, device: torch.device) -> dict[str, torch.Tensor]:
    """Of the learner, float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    return {name: torch.zeros(weight.shape, device=device) for name, weight in model.named_parameters()}


def published(weights: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, weight in weights.items():
        yield name, weight.to(torch.bfloat16)


async def keep_busy(engine: VllmEngine, count: int, longest: int) -> None:
    """`count` requests in flight at all times."""

    async def one(number: int) -> None:
        for turn in range(1_000_000):
            prompt = [(7 * number + turn) % 1000 + 1] * 64
            params = SamplingParams(max_tokens=longest - 64, seed=None)
            await engine.generate(prompt, params, trajectory_id=f"{number}-{turn}")

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(one(number))


async def updates(
    engine: VllmEngine, outputs: Outputs, weights: dict[str, torch.Tensor], args: argparse.Namespace
) -> dict[str, Any]:
    """`args.updates` after a first one."""
    shelf = WeightShelf(on_host=args.through_host)
    found: list[dict[str, float]] = []
    for number in range(args.updates + 1):
        await asyncio.sleep(args.seconds_between)
        started = time.perf_counter()
        shared = await asyncio.to_thread(shelf.put, published(weights))
        filled = time.perf_counter()
        await engine.update_weights(shared, number + 1)
        ended = time.perf_counter()
        count = len(outputs.times)
        while len(outputs.times) < count + 3:  # noqa: ASYNC110 (vLLM's own outputs)
            await asyncio.sleep(0.001)
        found.append(
            {
                "fill_seconds": filled - started,
                "update_seconds": ended - filled,
                "pause_seconds": max(outputs.gaps(filled, ended)),
                "longest_gap_while_filled": max(outputs.gaps(started, filled)),
            }
        )
    first, *rest = found
    pauses = sorted(each["pause_seconds"] for each in rest)
    median = {name: statistics.median(each[name] for each in rest) for name in first}
    return {
        "bytes": shared.num_bytes,
        "loads_by": engine.loads_by,
        "maps_devices": engine._maps_devices,
        "first": first,
        "median": median,
        "pauses": pauses,
        "gigabytes_per_second_of_pause": shared.num_bytes / median["pause_seconds"] / 1e9,
    }


async def measure(shape: str, args: argparse.Namespace, result: dict[str, Any]) -> None:
    gpus = args.sources if args.sources is not None else range(torch.cuda.device_count())
    with tempfile.TemporaryDirectory() as scratch:
        folder = empty_model(shape, Path(scratch))
        engine = VllmEngine(
            folder,
            load_format="dummy",
            max_model_len=args.longest,
            gpu_memory_utilization=args.memory,
            max_num_seqs=args.requests,
            shares_gpu=True,
        )
        started = time.perf_counter()
        await engine.start()
        result["engine_start_seconds"] = time.perf_counter() - started
        outputs = Outputs(engine)
        busy = asyncio.create_task(keep_busy(engine, args.requests, args.longest))
        try:
            while len(outputs.times) < 20:
                await asyncio.sleep(0.01)
                if busy.done():
                    busy.result()
            await asyncio.sleep(1.0)
            steps = outputs.gaps(outputs.times[10], outputs.times[-1])
            result["step_seconds"] = {"median": statistics.median(steps), "max": max(steps)}
            places = {f"from_gpu_{gpu}": torch.device("cuda", gpu) for gpu in gpus}
            for name, device in (places or {"from_cpu": torch.device("cpu")}).items():
                weights = parameters(folder, device)
                result[name] = await updates(engine, outputs, weights, args)
                print(shape, name, result[name], flush=True)
                del weights
                if device.type == "cuda":
                    torch.cuda.empty_cache()
        finally:
            busy.cancel()
            await asyncio.wait([busy])
            await engine.close()
    if shape in LIMITS:
        result["limit_between_gpus_seconds"] = LIMITS[shape]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["0.6B"])
    parser.add_argument("--sources", type=int, nargs="+", help="GPUs that the learner is on; the engine is on 0")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--memory", type=float, default=0.35)
    parser.add_argument("--seconds-between", type=float, default=0.3)
    parser.add_argument("--through-host", action="store_true", help="what it costs without CUDA IPC")
    parser.add_argument("--name", default="weight_sync")
    args = parser.parse_args()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    results: dict[str, Any] = {"requests_in_flight": args.requests, "gpus": torch.cuda.device_count()}
    for shape in args.shapes:
        try:
            asyncio.run(measure(shape, args, results.setdefault(shape, {})))
        finally:
            results_file.write(args.name, results, gpu=gpu)


if __name__ == "__main__":
    main()
