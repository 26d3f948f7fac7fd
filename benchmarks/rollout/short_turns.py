"""Measure turns per second of short turns: of vLLM alone, under agent loops, and of several engines on one GPU.

    python -m benchmarks.rollout.short_turns --shape 135M --engines 1 2 4 [--mps]

Turns have 3.6 sampled tokens on average, as those of an agent that names a move or presses a button. The model has the
shape of SmolLM2-135M or Qwen3-0.6B, and weights that end a turn with the same probability at each token
(`ending_model`). Episodes have `--turns` turns with an answer of one line between them, after a prompt that no other
episode has. So each turn finds the prefix of the turn before in the cache, as in a real run.

- `bare`: `AsyncLLM.generate` of one engine in this process, with the sampling parameters that the engine adapter uses;
- `loops`: agent loops on that engine;
- `engines_N`: N Ray workers with agent loops (`workers.gpus`), the others idle.

`--in-flight` episodes run at a time, on all engines together, or on each with `--on-each`. With `--mps` the engines
share the GPU through NVIDIA's Multi-Process Service. `loop_us` is processor time of the process with the agent loops,
`core_us` that of the engine cores, both in microseconds for each turn. With `--py-spy FOLDER` the stacks of all
processes are recorded in another run of `loops`, which does not count; the result says how often a function was found.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from agentloop.config.loading import load_config
from agentloop.config.resolved import Facts, resolve
from agentloop.config.run import RunConfig
from agentloop.engines import SamplingParams
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.engines.vllm.requests import vllm_params
from agentloop.episodes.setup import RolloutSetup
from agentloop.trainer.run.workers import has_gpus, make_workers
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.ray.pool import RayWorkers
from benchmarks import results_file
from benchmarks.learner.gpu_use import GpuUse, multi_process_service
from benchmarks.rollout.ending_model import SHAPES, ending_model
from benchmarks.rollout.engine_throughput import ANSWER, Closed
from benchmarks.rollout.in_flight import episodes_of, window

_REPLIES = Path(__file__).parent / "replies.py"
_MAX_TURN_TOKENS = 16
_SPY_SECONDS = 4
_SPY_RATE = 200
_names = itertools.count()


def config_of(folder: Path, args: argparse.Namespace, *, engines: int = 0) -> RunConfig:
    longest = args.prompt_words * 4 + args.turns * (_MAX_TURN_TOKENS + ANSWER)
    options = {"max_model_len": longest, "max_num_seqs": args.most} | args.engine_options
    settings = [
        f"limits={{max_turns: {args.turns}, max_turn_tokens: {_MAX_TURN_TOKENS}, max_tokens: {longest}}}",
        f"env={{factory: '{_REPLIES}:Replies', options: {{turns: {args.turns}}}}}",
        f"engine.max_concurrency={args.most}",
        f"engine.options={json.dumps(options)}",
    ]
    if engines:
        gpus = round(args.memory / 0.9, 3) if has_gpus() else 0
        settings.append(f"workers={{kind: ray, count: {engines}, gpus: {gpus}, show_logs: true}}")
    path = folder / "run.yaml"
    path.write_text(
        f"model: {folder}\n"
        f"data: {{train: '{_REPLIES}:questions', train_options: {{num_rows: {args.rows}, "
        f"num_words: [{args.prompt_words}]}}}}\n"
        "engine: {name: vllm}\nlearner: {}\n"
    )
    return load_config(RunConfig, path, settings)


async def play_bare(engine: VllmEngine, prompts: list[list[int]], end: int, in_flight: int, turns: int) -> list[int]:
    """Return the number of sampled tokens of each turn, of vLLM without agent loops."""
    from vllm.inputs import tokens_input

    params = vllm_params(SamplingParams(max_tokens=_MAX_TURN_TOKENS, stop_token_ids=(end,)), engine.max_model_len)

    async def one(prompt: list[int]) -> list[int]:
        lengths, name = [], f"bare-{next(_names)}"
        for turn in range(turns):
            async for output in engine.llm.generate(tokens_input(prompt, cache_salt="0"), params, f"{name}-{turn}"):
                ids = output.outputs[0].token_ids
            lengths.append(len(ids))
            prompt = [*prompt, *ids, *range(ANSWER)]
        return lengths

    episodes = await window([lambda prompt=prompt: one(prompt) for prompt in prompts], in_flight)
    return list(itertools.chain.from_iterable(episodes))


@dataclass(slots=True)
class Bench:
    """All engines and workers of the benchmark."""

    args: argparse.Namespace
    engine: VllmEngine
    loops: LocalWorkers
    workers: RayWorkers | None
    rows_used: int = 0

    async def run(self, what: str, *, waves: int) -> dict[str, float | None]:
        """Make one measurement of `waves` times as many episodes as are in flight."""
        args = self.args
        engines = int(what.removeprefix("engines_")) if what.startswith("engines") else 1
        in_flight = args.in_flight * (engines if args.on_each else 1)
        rows = list(range(self.rows_used, self.rows_used + in_flight * waves))
        self.rows_used += len(rows)
        assert self.rows_used <= args.rows, "--rows are too few"
        prompts = self._prompts(rows) if what == "bare" else []  # rendering is work of the loops
        with self._only(engines), GpuUse() as gpu:
            before, started = processor_seconds(), time.perf_counter()
            if what == "bare":
                end = self.loops.episodes.renderer.stop_token_ids[0]
                lengths = await play_bare(self.engine, prompts, end, in_flight, args.turns)
                turns, sampled = len(lengths), sum(lengths)
            else:
                workers = self.loops if what == "loops" else self.workers
                assert workers is not None
                episodes = await episodes_of(workers, rows, in_flight)
                turns = sum(episode.num_turns for episode in episodes)
                sampled = sum(int(episode.loss_mask.sum()) for episode in episodes)
            seconds = time.perf_counter() - started
            used = {name: value - before[name] for name, value in processor_seconds().items()}
        return {
            "turns_per_second": turns / seconds,
            "tokens_a_turn": sampled / turns,
            "loop_us": microseconds(used, "workers" if what.startswith("engines") else "this", turns),
            "core_us": microseconds(used, "cores", turns),
            "gpu_busy": gpu.busy,
        }

    def _prompts(self, rows: list[int]) -> list[list[int]]:
        episodes = self.loops.episodes
        return [episodes.renderer.render_prompt(episodes.train[row]["messages"], ()) for row in rows]

    @contextmanager
    def _only(self, engines: int) -> Iterator[None]:
        """Let only that many workers get requests."""
        slots = self.workers.slots[engines:] if self.workers else []
        limits = [slot.limit for slot in slots]
        for slot in slots:
            slot.limit = Closed()  # type: ignore[assignment]
        try:
            yield
        finally:
            for slot, limit in zip(slots, limits, strict=True):
                slot.limit = limit


@contextmanager
def spied(folder: Path) -> Iterator[None]:
    """Record the stacks of this process and of its engine cores for some seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = {"loop": psutil.Process()} | {f"core{child.pid}": child for child in _children() if _is_core(child)}
    spies = []
    for name, process in processes.items():
        rate = ["--rate", str(_SPY_RATE), "--duration", str(_SPY_SECONDS)]
        where = ["--pid", str(process.pid), "--format", "raw", "--output", str(folder / f"{name}.txt")]
        spies.append(subprocess.Popen(["py-spy", "record", *rate, *where]))
    try:
        yield
    finally:
        for spy in spies:
            spy.wait()


def stack_shares(folder: Path) -> dict[str, dict[str, float]]:
    """Return for each recorded process the share of samples in which a function was on the stack, if 3% or more."""
    found = {}
    for path in sorted(folder.glob("*.txt")):
        counts, total = Counter[str](), 0
        for line in path.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            total += int(count)
            for function in {frame.rpartition(":")[0] + ")" for frame in stack.split(";")}:
                counts[function] += int(count)
        if total > _SPY_SECONDS * _SPY_RATE / 2:  # the others are idle
            found[path.stem] = {name: round(n / total, 3) for name, n in counts.most_common() if n >= 0.03 * total}
    return found


def processor_seconds() -> dict[str, float]:
    """Return the processor time of this process, of Ray workers, and of all engine cores so far."""
    total = {"this": sum(psutil.Process().cpu_times()[:2]), "workers": 0.0, "cores": 0.0}
    for child in _children():
        with suppress(psutil.NoSuchProcess):
            kind = "cores" if _is_core(child) else "workers" if child.name().startswith("ray::Replica") else None
            if kind is not None:
                total[kind] += sum(child.cpu_times()[:2])
    return total


def microseconds(used: Mapping[str, float], kind: str, turns: int) -> float:
    """Return the processor time of a turn. Raises `RuntimeError` if there is none: the names of processes changed."""
    if used[kind] <= 0:
        names = sorted({child.name() for child in _children()})
        raise RuntimeError(
            f"No process of the kind {kind!r} used processor time: `processor_seconds` does not know its name. The "
            f"processes are {names}."
        )
    return used[kind] / turns * 1e6


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _is_core(process: psutil.Process) -> bool:
    """Return whether it is an engine core of vLLM, or a worker of one."""
    return bool(process.name().startswith("VLLM::"))


async def start(folder: Path, args: argparse.Namespace) -> Bench:
    episodes = RolloutSetup.load(config_of(folder, args), folder)
    options = config_of(folder, args).engine.options
    engine = VllmEngine(folder, gpu_memory_utilization=args.memory, shares_gpu=True, **options)
    loops = LocalWorkers(episodes, engine)
    workers = None
    if args.engines:
        config = config_of(folder, args, engines=max(args.engines))
        made = make_workers(resolve(config, Facts(model=folder, has_gpus=has_gpus())), episodes)
        assert isinstance(made, RayWorkers)
        workers = made
    waits: list[Awaitable[Any]] = [engine.start(), *([workers.start()] if workers else [])]
    await asyncio.gather(*waits)
    return Bench(args, engine, loops, workers)


def summary(found: dict[str, list[dict[str, float | None]]]) -> dict[str, Any]:
    """Return medians, and the ratio of each rate to that of `bare`."""
    result: dict[str, Any] = {}
    for what, runs in found.items():
        values = {name: [run[name] for run in runs if run[name] is not None] for name in runs[0]}
        result[what] = {name: statistics.median(each) for name, each in values.items() if each}
        result[what]["all_turns_per_second"] = values["turns_per_second"]
    for case in result.values():
        case["over_bare"] = case["turns_per_second"] / result["bare"]["turns_per_second"]
    return result


async def measure(folder: Path, args: argparse.Namespace, write: Callable[[dict[str, Any]], None]) -> None:
    began = time.perf_counter()
    bench = await start(folder, args)
    head = {"start_seconds": time.perf_counter() - began}
    print(head, flush=True)
    found: dict[str, list[dict[str, float | None]]] = {}
    cases = ["bare", "loops", *(f"engines_{count}" for count in args.engines)]
    try:
        for what in ("bare", *cases[2:][-1:]):  # warm-up: kernels that compile at their first use
            await bench.run(what, waves=1)
        for what in cases * args.repeats:
            if time.perf_counter() - began < args.seconds:
                found.setdefault(what, []).append(await bench.run(what, waves=args.waves))
                print(f"{time.perf_counter() - began:.0f} s", what, found[what][-1], flush=True)
                write(head | summary(found))
        if args.py_spy:
            with spied(args.py_spy):
                await bench.run("loops", waves=args.waves)
            write(head | summary(found) | {"stacks": stack_shares(args.py_spy)})
        if not found:
            raise TimeoutError(
                f"The engines took longer to start than --seconds {args.seconds:g}: nothing is measured."
            )
    finally:
        await bench.engine.close()
        if bench.workers:
            await bench.workers.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="135M", choices=SHAPES)
    parser.add_argument("--engines", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--in-flight", type=int, default=512)
    parser.add_argument("--on-each", action="store_true", help="--in-flight is for each engine")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--prompt-words", type=int, default=120)
    parser.add_argument("--waves", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0, help="no measurement starts later")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--memory", type=float, default=0.16, help="share of the GPU for each engine")
    parser.add_argument("--mps", action="store_true", help="use NVIDIA's Multi-Process Service")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="further options of vLLM, as JSON")
    parser.add_argument("--py-spy", type=Path, help="folder for recorded stacks")
    parser.add_argument("--name", default="short_turns")
    args = parser.parse_args()
    for program, option in (("nvidia-cuda-mps-control", args.mps), ("py-spy", args.py_spy)):
        if option and shutil.which(program) is None:
            parser.error(f"{program} is not installed")
    args.most = args.in_flight
    settings = {name: value for name, value in vars(args).items() if name != "py_spy"}
    with tempfile.TemporaryDirectory() as scratch:
        service = multi_process_service(Path(scratch) / "mps") if args.mps else nullcontext()
        with service:
            gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None

            def write(result: dict[str, Any]) -> None:
                results_file.write(args.name, settings | result, gpu=gpu)

            asyncio.run(measure(ending_model(args.shape, Path(scratch) / "model"), args, write))


if __name__ == "__main__":
    main()
