"""Measure tokens per second of vLLM alone, of the same engine under agent loops, and of several engines on one GPU.

    python -m benchmarks.rollout.engine_throughput --shape 0.6B --engines 2 3 4

Engines have random weights of the shape of a Qwen3 model. Episodes have one turn of `--sampled` tokens after a prompt
of one of `--prompt-words`. All engines start together, run until the end, and have the same share of the GPU and the
same options:

- `bare`: `AsyncLLM.generate` of one engine in this process, with the sampling parameters that the engine adapter uses;
- `engines_N`: N Ray workers with agent loops (`workers.gpus`), the others idle. `in_flight` is for each engine;
- `loops`: agent loops on the engine of `bare`, at most `in_flight`;
- `..._of_4_turns`: as many sampled tokens in four turns with an answer between them.

A measurement has `--waves` times as many episodes as are in flight. No prompt occurs twice, so none is cached. Rounds
of all measurements are repeated, and the median counts. `memory_bound` is the limit by the GPU's memory bandwidth
(`gpu_use.sampling_bound`), and `gpu_busy` the share of the time in which a kernel ran, according to the driver. After
`--seconds` no further measurement starts. The result is written after each measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from agentloop.config.loading import load_config
from agentloop.config.resolved import Facts, resolve
from agentloop.config.run import RunConfig
from agentloop.engines import FinishReason, SamplingParams
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.engines.vllm.requests import vllm_params
from agentloop.episodes.setup import RolloutSetup
from agentloop.trainer.run.workers import has_gpus, make_workers
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.ray.pool import RayWorkers
from benchmarks import results_file
from benchmarks.learner.gpu_use import GpuUse, multi_process_service, sampling_bound
from benchmarks.learner.qwen3 import empty_model, model_config
from benchmarks.rollout.in_flight import played, window

ANSWER = 28
"""Tokens of an answer of `Replies`."""
_REPLIES = Path(__file__).parent / "replies.py"
_LIMIT = 120.0
"""Maximum seconds of one measurement."""
_names = itertools.count()


class EndingEngine(VllmEngine):
    """Engine wrapper that reports cut turns as ended, because random weights never end a turn."""

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        turn = await super().generate(*args, **kwargs)
        return replace(turn, finish_reason=FinishReason.STOP)


def config_of(folder: Path, args: argparse.Namespace, *, turns: int = 1, engines: int = 0) -> RunConfig:
    options = json.dumps(engine_options(args))
    settings = [
        f"limits={{max_turns: {turns}, max_turn_tokens: {args.sampled // turns}, max_tokens: {args.longest}}}",
        f"env={{factory: '{_REPLIES}:Replies', options: {{turns: {turns}}}}}",
        f"engine.max_concurrency={max(args.in_flight)}",
        f"engine.options={options}",
    ]
    if engines:
        gpus = round(args.memory / 0.9, 3) if torch.cuda.is_available() else 0
        settings.append(f"workers={{kind: ray, count: {engines}, gpus: {gpus}, show_logs: true}}")
    rows = f"{{num_rows: {args.rows}, num_words: {args.prompt_words}}}"
    path = folder / "run.yaml"
    path.write_text(
        f"model: {folder}\n"
        f"data: {{train: '{_REPLIES}:questions', train_options: {rows}}}\n"
        "engine: {name: vllm}\nlearner: {}\n"
    )
    return load_config(RunConfig, path, settings)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    fixed = {"load_format": "dummy", "max_model_len": args.longest, "max_num_seqs": max(args.in_flight)}
    return fixed | args.engine_options


async def bare(
    engine: VllmEngine, prompts: list[list[int]], args: argparse.Namespace, in_flight: int, turns: int
) -> int:
    """Return the tokens that vLLM samples without agent loops, in one request per episode or several.

    Each further request has the tokens sampled before and `ANSWER` more.
    """
    from vllm.inputs import tokens_input

    params = vllm_params(SamplingParams(max_tokens=args.sampled // turns), args.longest)

    async def one(prompt: list[int]) -> int:
        sampled, name = 0, f"bare-{next(_names)}"
        for turn in range(turns):
            async for output in engine.llm.generate(tokens_input(prompt, cache_salt="0"), params, f"{name}-{turn}"):
                ids = output.outputs[0].token_ids
            sampled += len(ids)
            prompt = [*prompt, *ids, *range(ANSWER)]
        return sampled

    return sum(await window([lambda prompt=prompt: one(prompt) for prompt in prompts], in_flight))


class Closed:
    """Limit of a worker that gets no requests."""

    limit = 0

    def room(self, in_flight: int) -> int:
        return 0


@dataclass(slots=True)
class Bench:
    """All engines and workers of the benchmark."""

    args: argparse.Namespace
    engine: VllmEngine
    loops: dict[int, LocalWorkers]
    """Agent loops on that engine, by number of turns."""
    workers: RayWorkers | None
    rows_used: list[int] = field(default_factory=lambda: [0, 0])
    """Number of rows already played, for each kind of prompt."""

    def rows(self, kind: int, count: int) -> list[int]:
        """Return rows that were not played before, with prompts of that kind."""
        kinds = len(self.args.prompt_words)
        first = self.rows_used[kind]
        self.rows_used[kind] += count
        assert (first + count) * kinds <= self.args.rows, "--rows are too few"
        return [kind + kinds * place for place in range(first, first + count)]

    async def run(self, what: str, kind: int, in_flight: int, *, waves: int | None = None) -> dict[str, float | None]:
        """Make one measurement: `what` is bare, loops, engines_N, or one of the first two with `_of_4_turns`."""
        engines = int(what.removeprefix("engines_")) if what.startswith("engines") else 0
        turns = 4 if what.endswith("_of_4_turns") else 1
        episodes = in_flight * max(engines, 1)
        rows = self.rows(kind, episodes * (waves or self.args.waves))
        prompts = self.prompts(rows) if what.startswith("bare") else []
        if engines:
            assert self.workers is not None
            limits = [slot.limit for slot in self.workers.slots]
            for slot in self.workers.slots[engines:]:
                slot.limit = Closed()  # type: ignore[assignment]
        started = time.perf_counter()
        with GpuUse() as gpu:
            if prompts:
                job: Awaitable[int] = bare(self.engine, prompts, self.args, in_flight, turns)
            else:
                job = played(self.workers if engines else self.loops[turns], rows, episodes)  # type: ignore[arg-type]
            sampled = await asyncio.wait_for(job, _LIMIT)
        seconds = time.perf_counter() - started
        if engines:
            for slot, limit in zip(self.workers.slots, limits, strict=True):  # type: ignore[union-attr]
                slot.limit = limit
        return {"tokens_per_second": sampled / seconds, "seconds": seconds, "gpu_busy": gpu.busy}

    def prompts(self, rows: Sequence[int]) -> list[list[int]]:
        episodes = self.loops[1].episodes
        return [episodes.renderer.render_prompt(episodes.train[row]["messages"], ()) for row in rows]


async def start(folder: Path, args: argparse.Namespace) -> Bench:
    engine = EndingEngine(folder, gpu_memory_utilization=args.memory, shares_gpu=True, **engine_options(args))
    loops = {
        turns: LocalWorkers(RolloutSetup.load(config_of(folder, args, turns=turns), folder), engine) for turns in (1, 4)
    }
    workers = None
    if args.engines:
        config = config_of(folder, args, engines=max(args.engines))
        made = make_workers(resolve(config, Facts(model=folder, has_gpus=has_gpus())), loops[1].episodes)
        assert isinstance(made, RayWorkers)
        workers = made
    await asyncio.gather(engine.start(), *([workers.start()] if workers else []))
    return Bench(args, engine, loops, workers)


def cases(args: argparse.Namespace) -> list[tuple[str, int, int]]:
    """Return (what, kind of prompt, in flight on each engine), the most informative ones first."""
    most = max(args.in_flight)
    turns = [(what, 0, most) for what in ("bare", "loops", "bare_of_4_turns", "loops_of_4_turns")]
    kinds = range(len(args.prompt_words))
    rest = [
        (what, kind, in_flight)
        for kind in kinds
        for in_flight in args.in_flight
        for what in ("bare", *(f"engines_{count}" for count in args.engines))
        if what == "bare" or in_flight * int(what.removeprefix("engines_")) <= args.most
    ]
    return turns + [case for case in rest if case not in turns]


def summary(args: argparse.Namespace, found: dict[tuple[str, int, int], list[dict[str, Any]]]) -> dict[str, Any]:
    """Return medians and their ratios to `bare`, by kind of prompt and number in flight."""
    shape = model_config(args.shape)
    result: dict[str, Any] = {}
    for (what, kind, in_flight), runs in found.items():
        context = args.tokens[kind] + args.sampled / 2
        place = result.setdefault(f"{args.tokens[kind]}_in_{args.sampled}_out", {})
        point = place.setdefault(f"{in_flight}_in_flight", {})
        point["memory_bound"] = sampling_bound(shape, context=context, in_flight=in_flight, bandwidth=args.bandwidth)
        rates = [run["tokens_per_second"] for run in runs]
        busy = [run["gpu_busy"] for run in runs if run["gpu_busy"] is not None]
        point[what] = {"tokens_per_second": statistics.median(rates), "all": rates}
        if busy:
            point[what]["gpu_busy"] = statistics.median(busy)
    for place in result.values():
        best = max((point["bare"]["tokens_per_second"] for point in place.values() if "bare" in point), default=None)
        for point in place.values():
            for what, case in point.items():
                if what == "memory_bound" or what.startswith("bare"):
                    continue
                beside = point.get("bare_of_4_turns" if what.endswith("turns") else "bare")
                if beside is not None:
                    case["over_bare"] = case["tokens_per_second"] / beside["tokens_per_second"]
                if best is not None and what.startswith("engines"):
                    case["over_best_bare"] = case["tokens_per_second"] / best
    return result


async def measure(folder: Path, args: argparse.Namespace, write: Callable[[dict[str, Any]], None]) -> None:
    began = time.perf_counter()
    bench = await start(folder, args)
    head = {"start_seconds": time.perf_counter() - began, "cache_tokens": bench.engine.cache_tokens}
    print(head, flush=True)
    args.tokens = [len(bench.prompts([kind])[0]) for kind in range(len(args.prompt_words))]
    found: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    try:
        for kind in range(len(args.prompt_words)):  # warm-up: kernels that compile at their first use
            await bench.run("bare", kind, max(args.in_flight), waves=1)
            if bench.workers:
                await bench.run(f"engines_{max(args.engines)}", kind, min(args.in_flight), waves=1)
        for _ in range(args.repeats):
            for case in cases(args):
                if time.perf_counter() - began > args.seconds:
                    return
                found.setdefault(case, []).append(await bench.run(*case))
                print(f"{time.perf_counter() - began:.0f} s", *case, found[case][-1], flush=True)
                write(head | summary(args, found))
    finally:
        await bench.engine.close()
        if bench.workers:
            await bench.workers.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.6B")
    parser.add_argument("--engines", type=int, nargs="*", default=[2, 3, 4])
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64, 128, 256], help="on each engine")
    parser.add_argument("--most", type=int, default=768, help="in flight on all engines together")
    parser.add_argument("--prompt-words", type=int, nargs="+", default=[160, 350])
    parser.add_argument("--sampled", type=int, default=256)
    parser.add_argument("--longest", type=int, default=768)
    parser.add_argument("--waves", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--memory", type=float, default=0.19, help="share of the GPU for each engine")
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="GPU memory bandwidth in bytes per second")
    parser.add_argument("--mps", action="store_true", help="use NVIDIA's Multi-Process Service")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="further options of vLLM, as JSON")
    parser.add_argument("--name", default="engine_throughput")
    args = parser.parse_args()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    settings = dict(vars(args))

    def write(result: dict[str, Any]) -> None:
        results_file.write(args.name, settings | result, gpu=gpu)

    with tempfile.TemporaryDirectory() as scratch:
        service = multi_process_service(Path(scratch) / "mps") if args.mps else nullcontext()
        with service:
            asyncio.run(measure(empty_model(args.shape, Path(scratch) / "model"), args, write))


if __name__ == "__main__":
    main()
