"""The tiny recipe with slow tools, synchronous and asynchronous: steps a second, and what is learned.

    python benchmarks/async_tiny.py [--steps 24]

Real engine (hf), real learner, real sandbox; each tool call sleeps before it runs, as long as tool calls of agents were
measured to take (TraceLab: lognormal, 0.3 s in the median), cut at half a minute.
Both train from the shipped checkpoint on the same tasks, one after the other on the same machine. `asynchronous` is
`staleness={mode: partial, max_staleness: 2}` with truncated importance sampling.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import results_file

from agentloop.cli.recipe import load_run_config
from agentloop.tools.base import ToolContext, ToolResult
from agentloop.tools.code_interpreter import CodeInterpreter
from agentloop.trainer.run.run import train

MEDIAN, SIGMA, LONGEST = 0.3, 2.98, 30.0
"""Seconds of sleep."""


class SlowInterpreter(CodeInterpreter):
    """The code interpreter behind a slow network."""

    name = "code_interpreter"
    description = CodeInterpreter.description

    async def call(self, ctx: ToolContext, code: Annotated[str, "Python code to run"]) -> ToolResult:
        """Sleeps, then runs the code."""
        draw = random.Random(ctx.trajectory_id).lognormvariate(0.0, SIGMA)
        await asyncio.sleep(min(MEDIAN * draw, LONGEST))
        return await super().call(ctx, code)


CASES = {
    "synchronous": ["staleness={mode: on_policy}"],
    "asynchronous": ["staleness={mode: partial, max_staleness: 2}", "learner.corrections=[truncate]"],
}


async def measure(case: list[str], steps: int, folder: Path) -> dict[str, float]:
    """One run: its steps a second, without what comes before the first step, and rewards."""
    settings = [f"run.steps={steps}", f"run.save_every={steps}", "run.loggers=[]", f"eval.every={steps}"]
    tools = f"env.tools=[{__file__}:SlowInterpreter]"
    started = time.perf_counter()
    run = await train(load_run_config("tiny", [*settings, tools, *case]), folder)
    lines = run.read_metrics()[1:]
    seconds = sum(line["time/step"] - line.get("time/eval", 0.0) for line in lines)
    return {
        "steps_per_second": round(steps / seconds, 4),
        "seconds_in_all": round(time.perf_counter() - started, 1),
        "reward_before": run.read_metrics()[0]["eval/reward/mean"],
        "reward_after": lines[-1]["eval/reward/mean"],
        "reward_last_quarter": round(sum(line["reward/mean"] for line in lines[-steps // 4 :]) / (steps // 4), 4),
        "staleness_max": max(line.get("staleness/max", 0.0) for line in lines),
        "tool_seconds_an_episode": round(sum(line["time/tools_mean"] for line in lines) / steps, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args()
    results: dict[str, Any] = {"steps": args.steps, "sleep": {"median": MEDIAN, "sigma": SIGMA, "longest": LONGEST}}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            results[name] = asyncio.run(measure(case, args.steps, Path(folder) / name))
            print(name, results[name], flush=True)
    rates = [results[name]["steps_per_second"] for name in ("asynchronous", "synchronous")]
    results["asynchronous_over_synchronous"] = round(rates[0] / rates[1], 3)
    results_file.write("async_tiny", results)


if __name__ == "__main__":
    main()
