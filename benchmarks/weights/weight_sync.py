"""Measure the pause of an engine for new weights: from the last token of the old to the first of the new weights.

    python -m benchmarks.weights.weight_sync --shapes 0.6B 4B 8B      # one or two GPUs
    python -m benchmarks.weights.weight_sync --shapes tiny            # a CPU

The engine runs vLLM with random weights of the shape of a Qwen3 model and always has requests in flight. The learner
has the same parameters in float32 (`weight_sources`): on the engine's GPU, on another one, in shards over two ranks,
or in a process that sends them as to another host. `fill_seconds` is the time to fill the shelf that the engine maps,
while it samples. `pause_seconds` is the longest time between two outputs of the engine around the update, and
`step_seconds` the usual one. `first` is the first update of each kind, which maps the memory and uses vLLM's loader.

Each shape has a process of its own. All of them start together, and measure one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from agentloop.engines import SamplingParams
from agentloop.engines.vllm.engine import VllmEngine
from benchmarks import results_file
from benchmarks.learner.qwen3 import empty_model
from benchmarks.weights.weight_sources import Source, helper, source

LIMITS = {"0.6B": 0.0032, "4B": 0.0217, "8B": 0.044}
"""Seconds at 370 GB/s, what NCCL reaches between two H200."""
ASKED = {"0.6B": 0.040, "4B": 0.080, "8B": 0.120}
STARTS: dict[str, dict[str, Any]] = {
    "compiled": {},
    "graphs": {
        "compilation_config": {
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [1, 8, 16, 32, 48, 64],
        }
    },
    "eager": {"enforce_eager": True},
}
"""vLLM options of each kind of start. A compiled start takes a minute or more."""
MEMORY = {"0.6B": 0.12, "4B": 0.18, "8B": 0.25}
"""Share of the engine's GPU, beside other engines and the learner."""


class Outputs:
    """Times of the engine's outputs."""

    def __init__(self, engine: VllmEngine) -> None:
        self.times: list[float] = []
        processor = engine.llm.output_processor
        process = processor.process_outputs

        def noted(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if any(output.new_token_ids for output in outputs):
                self.times.append(time.perf_counter())
            return process(outputs, *args, **kwargs)

        processor.process_outputs = noted

    def gaps(self, start: float, end: float) -> list[float]:
        """Return seconds between outputs, from the last one before `start` to the first one after `end`."""
        first = max((t for t in self.times if t <= start), default=start)
        last = min((t for t in self.times if t >= end), default=end)
        times = [t for t in self.times if first <= t <= last]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


async def keep_busy(engine: VllmEngine, count: int, longest: int) -> None:
    """Keep `count` requests in flight at all times."""

    async def one(number: int) -> None:
        for turn in range(1_000_000):
            prompt = [(7 * number + turn) % 1000 + 1] * 64
            params = SamplingParams(max_tokens=longest - 64, seed=None)
            await engine.generate(prompt, params, trajectory_id=f"{number}-{turn}")

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(one(number))


async def updates(engine: VllmEngine, outputs: Outputs, weights: Source, args: argparse.Namespace) -> dict[str, Any]:
    """Measure `args.updates` updates after a first one."""
    found: list[dict[str, float]] = []
    for number in range(args.updates + 1):
        await asyncio.sleep(args.seconds_between)
        started = time.perf_counter()
        shared = await asyncio.to_thread(weights.fill)
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
    median = {name: statistics.median(each[name] for each in rest) for name in first}
    return {
        "bytes": shared.num_bytes,
        "bytes_by_process": [sum(place.num_bytes for place in part) for part in _by_part(shared)],
        "loads_by": engine.loads_by,
        "maps_devices": engine.transport.maps_devices,
        "first": first,
        "median": median,
        "pauses": sorted(each["pause_seconds"] for each in rest),
        "fills": sorted(each["fill_seconds"] for each in rest),
        "gigabytes_per_second_of_pause": shared.num_bytes / median["pause_seconds"] / 1e9,
    }


def _by_part(shared: Any) -> list[list[Any]]:
    ends = list(itertools.accumulate(len(part.buckets) for part in shared.parts))
    starts = [0, *ends[:-1]]
    return [
        [place for place in shared.places if start <= place.bucket < end]
        for start, end in zip(starts, ends, strict=True)
    ]


def say(name: str, value: Any) -> None:
    """Report a value to the process that writes the results."""
    print(json.dumps({name: value}), flush=True)


async def measure(shape: str, args: argparse.Namespace) -> None:
    helpers = {kind: helper(kind) for kind in args.sources if kind in ("ranks", "sent")}
    with tempfile.TemporaryDirectory() as scratch:
        folder = empty_model(shape, Path(scratch))
        engine = VllmEngine(
            folder,
            load_format="dummy",
            max_model_len=args.longest,
            gpu_memory_utilization=MEMORY.get(shape, 0.1),
            max_num_seqs=args.requests,
            shares_gpu=True,
            **STARTS[args.start],
        )
        started = time.perf_counter()
        await engine.start()
        say("engine_start_seconds", time.perf_counter() - started)
        say("ready", True)
        await asyncio.to_thread(sys.stdin.readline)
        outputs = Outputs(engine)
        busy = asyncio.create_task(keep_busy(engine, args.requests, args.longest))
        try:
            while len(outputs.times) < 20:
                await asyncio.sleep(0.01)
                if busy.done():
                    busy.result()
            await asyncio.sleep(1.0)
            steps = outputs.gaps(outputs.times[10], outputs.times[-1])
            say("step_seconds", {"median": statistics.median(steps), "max": max(steps)})
            for kind in args.sources:
                given = kind, helpers.get(kind), folder, args.updates + 1
                with source(*given, through_host=args.through_host) as weights:
                    say(f"from_{kind}", await updates(engine, outputs, weights, args))
                del weights
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
        finally:
            busy.cancel()
            await asyncio.wait([busy])
            await engine.close()


def run_all(args: argparse.Namespace) -> None:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    results: dict[str, Any] = {
        "requests_in_flight": args.requests,
        "gpus": torch.cuda.device_count(),
        "vllm_start": args.start,
    }
    command = [sys.executable, "-m", "benchmarks.weights.weight_sync", *sys.argv[1:], "--one"]
    running = {
        shape: subprocess.Popen([*command, shape], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for shape in args.shapes
    }
    for shape, process in running.items():
        result = results.setdefault(shape, {})
        if shape in LIMITS:
            result |= {"limit_between_gpus_seconds": LIMITS[shape], "asked_seconds": ASKED[shape]}
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):  # output of vLLM
                continue
            said = json.loads(line)
            print(shape, said, flush=True)
            if said.pop("ready", False):
                process.stdin.write("go\n")
                process.stdin.flush()
            result |= said
            results_file.write(args.name, results, gpu=gpu)
        result["exit_code"] = process.wait()
        results_file.write(args.name, results, gpu=gpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["0.6B"])
    gpus = [f"gpu{index}" for index in range(min(torch.cuda.device_count(), 2))]
    several = ["ranks", "sent"] if len(gpus) != 1 else []
    parser.add_argument("--sources", nargs="+", default=[*(gpus or ["cpu"]), *several], help="the engine is on gpu0")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--seconds-between", type=float, default=0.3)
    parser.add_argument("--start", choices=STARTS, default="compiled")
    parser.add_argument("--through-host", action="store_true", help="measure without CUDA IPC")
    parser.add_argument("--name", default="weight_sync")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        asyncio.run(measure(args.one, args))
    else:
        run_all(args)


if __name__ == "__main__":
    main()
