"""Run the recipe chain on a GPU, synchronously and asynchronously: rewards, speed, and utilisation over time.

    python -m agentloop.recipes.chain.model && agentloop sft chain run.folder=recipes/chain/data/sft
    python -m benchmarks.runs.chain_runs plain               # plain tools
    python -m benchmarks.runs.chain_runs slow                # each call sleeps first, as long as agents' calls take

vLLM, the FSDP learner and the sandbox are real. All modes start from the same model, with the same tasks and settings,
one after the other on the same GPU. `asynchronous` is `staleness={mode: partial, max_staleness: 2}` with truncated
importance sampling; `apart` is the same with the learner in a process of its own. Sleeps are lognormal with the median
and the spread that TraceLab measured (0.3 s, sigma 2.98), cut at `--longest-sleep`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch

from agentloop.api.recipe import load_run_config
from agentloop.tools.base import ToolContext, ToolResult
from agentloop.tools.code_interpreter import CodeInterpreter
from agentloop.trainer.run.train import train
from agentloop.trainer.schedule.observers import Observer, Stage
from agentloop.types.trajectory import Trajectory
from benchmarks import results_file
from benchmarks.learner.gpu_use import multi_process_service

MEDIAN, SIGMA = 0.3, 2.98
_THIS = Path(__file__).resolve()
BIN = 0.25
"""Seconds per bin of the timeline."""
_CURVES = ("reward/mean", "time/step", "time/rollout", "time/train", "time/publish", "staleness/mean", "staleness/max",
           "learner/entropy", "learner/grad_norm", "learner/logprob_diff", "time/tools_mean")  # fmt: skip
CASES = {
    "synchronous": ["staleness={mode: on_policy}"],
    "asynchronous": ["staleness={mode: partial, max_staleness: 2}", "learner.corrections=[truncate]"],
    "apart": [
        "staleness={mode: partial, max_staleness: 2}",
        "learner.corrections=[truncate]",
        "learner.in_process=false",
    ],
}


class SlowInterpreter(CodeInterpreter):
    """Code interpreter with a slow network."""

    name = "code_interpreter"
    description = CodeInterpreter.description

    def __init__(self, *args: Any, longest_sleep: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._longest = longest_sleep

    async def call(self, ctx: ToolContext, code: Annotated[str, "Python code to run"]) -> ToolResult:
        """Sleeps, then runs the code."""
        await asyncio.sleep(min(MEDIAN * ctx.rng.lognormvariate(0.0, SIGMA), self._longest))
        return await super().call(ctx, code)


class Recorder(Observer):
    """Return stages as [name, step, start, end] and binned numbers of episodes in flight; seconds from the start."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int, float, float]] = []
        self._episodes: list[tuple[float, float]] = []
        self._began = time.perf_counter()
        self._stage: tuple[str, int, float] | None = None

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def on_stage(self, step: int, stage: Stage) -> None:
        now = self._now()
        if self._stage is not None:
            self.stages.append((*self._stage, now))
        self._stage = str(stage), step, now

    def on_trajectory(self, step: int, trajectory: Trajectory) -> None:
        now = self._now()
        self._episodes.append((now - trajectory.metrics.get("seconds", 0.0), now))

    def in_flight(self) -> list[int]:
        bins = [0] * (int(self._now() / BIN) + 1)
        for start, end in self._episodes:
            for place in range(max(int(start / BIN), 0), int(end / BIN) + 1):
                bins[place] += 1
        return bins


def curves(lines: Sequence[dict[str, float]]) -> dict[str, list[float | None]]:
    return {name: [line.get(name) for line in lines] for name in _CURVES if any(name in line for line in lines)}


def measure(case: list[str], folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Make one run. Its steps per second exclude evaluations and everything before the second step.

    It needs a process of its own: torch would keep the memory of the GPU for itself.
    """
    settings = [f"run.steps={args.steps}", f"run.save_every={args.steps}", f"eval.every={args.steps}"]
    settings += ["run.loggers=[]", *args.set]
    tool = {"name": "agentloop.tools.code_interpreter:CodeInterpreter", "options": {"sandbox": args.sandbox}}
    if args.tools == "slow":
        tool["name"] = f"{_THIS}:SlowInterpreter"
        tool["options"]["longest_sleep"] = args.longest_sleep
    settings.append(f"env.tools=[{{name: '{tool['name']}', options: {tool['options']}}}]")
    started = time.perf_counter()
    recorder = Recorder()
    config = load_run_config(args.recipe, [*settings, *case])
    run = asyncio.run(train(config, folder, recorder))
    first, *lines = run.read_metrics()
    timed = lines[1:]
    seconds = sum(line["time/step"] - line.get("time/eval", 0.0) for line in timed)
    last = lines[-max(args.steps // 4, 1) :]
    return {
        "steps_per_second": len(timed) / seconds,
        "seconds_in_all": time.perf_counter() - started,
        "held_out_reward_before": first["eval/reward/mean"],
        "held_out_reward_after": lines[-1]["eval/reward/mean"],
        "reward_last_quarter": sum(line["reward/mean"] for line in last) / len(last),
        "staleness_max": max(line.get("staleness/max", 0.0) for line in lines),
        "episodes_per_step": config.trajectories_per_step,
        "held_out_episodes": first.get("eval/episodes"),
        "curves": curves(lines),
        "last_step": lines[-1],
        "timeline": {"bin_seconds": BIN, "stages": recorder.stages, "in_flight": recorder.in_flight()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", choices=("plain", "slow"))
    parser.add_argument("--recipe", default="chain")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--longest-sleep", type=float, default=4.0)
    parser.add_argument("--sandbox", default="local")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--mps", action="store_true", help="use NVIDIA's Multi-Process Service")
    parser.add_argument("--name", help="of the result; default: RECIPE_TOOLS")
    parser.add_argument("--set", nargs="*", default=[], help="settings of the run, key=value")
    args = parser.parse_args()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    results: dict[str, Any] = {"steps": args.steps, "settings": args.set, "sandbox": args.sandbox, "mps": args.mps}
    if args.tools == "slow":
        results["sleep"] = {"median": MEDIAN, "sigma": SIGMA, "longest": args.longest_sleep}
    with tempfile.TemporaryDirectory() as folder:
        service = multi_process_service(Path(folder) / "mps") if args.mps else nullcontext()
        with service:
            for name in args.cases:
                with ProcessPoolExecutor(1, get_context("spawn")) as process:
                    results[name] = process.submit(measure, CASES[name], Path(folder) / name, args).result()
                shown = {key: value for key, value in results[name].items() if isinstance(value, float | int)}
                print(name, shown, flush=True)
                if name != "synchronous" and "synchronous" in results:
                    rates = [results[case]["steps_per_second"] for case in (name, "synchronous")]
                    results[f"{name}_over_synchronous"] = rates[0] / rates[1]
                results_file.write(args.name or f"{args.recipe}_{args.tools}", results, gpu=gpu)


if __name__ == "__main__":
    main()
