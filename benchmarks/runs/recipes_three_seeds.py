"""Measure held-out reward before and after the recipes' small runs, and their time, for several seeds.

    python -m benchmarks.runs.recipes_three_seeds [RECIPE ...] [--seeds 3] [--jobs 1] [--threads 1] [--set KEY=VALUE]

Without names, runs all recipes with a tiny.yaml. The seed is that of the run and of its training tasks; held-out tasks
are the same. Prints a table and writes results/recipes_three_seeds_RECIPE.json. With more jobs than cores, only
processor seconds are meaningful.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from agentloop.envs.workers.interpreters import envs_folder
from benchmarks import results_file
from benchmarks.side_by_side.agentloop_run import AGENTLOOP

RECIPES = Path(__file__).parents[2] / "recipes"


def run(recipe: str, config: str, seed: int, folder: Path, threads: int, overrides: list[str]) -> dict[str, Any]:
    """Make one training run of a config in a process of its own."""
    here = folder / f"{recipe}-{seed}"
    here.mkdir(parents=True)
    arguments = [
        f"run.seed={seed}",
        f"data.train_options.seed={seed}",
        f"run.folder={here / 'run'}",
        "run.save_trajectories=0",
        *overrides,
    ]
    # A run has its own caches, but the packages of environments are those that are installed.
    own = {"OMP_NUM_THREADS": str(threads), "HOME": str(here), "AGENTLOOP_ENVS": str(envs_folder())}
    started = time.perf_counter()
    with (here / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", AGENTLOOP, "train", config, *arguments],
            stdout=log,
            stderr=log,
            env={**os.environ, **own},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    result = {
        "recipe": recipe,
        "seed": seed,
        "wall_s": round(time.perf_counter() - started, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
    }
    if process.returncode != 0:
        return {**result, "failed": (here / "log").read_text()[-2000:]}
    return {**result, **rewards(here / "run" / "metrics.jsonl")}


def rewards(metrics: Path) -> dict[str, Any]:
    """Return the mean held-out reward of the first and last evaluation, and the mean reward of each step between."""
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    held_out = [step["eval/reward/mean"] for step in steps if "eval/reward/mean" in step]
    return {
        "before": round(held_out[0], 3),
        "after": round(held_out[-1], 3),
        "steps": len(steps) - 1,
        "training": [round(step["reward/mean"], 3) for step in steps if "reward/mean" in step],
    }


def report(result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"{result['recipe']:<12} {result['seed']:>4}  failed: {result['failed']}"
    numbers = f"{result['before']:>7.2f} {result['after']:>6.2f} {result['steps']:>6}"
    return f"{result['recipe']:<12} {result['seed']:>4} {numbers} {result['wall_s']:>7.0f} {result['cpu_s']:>6.0f}"


def measure(name: str, configs: Mapping[str, tuple[str, list[str]]], given: argparse.Namespace) -> None:
    """Run each config with its overrides for all seeds, print a table and write results/NAME_CONFIG.json."""
    print(f"{'recipe':<12} seed  before  after  steps  wall s  cpu s", flush=True)
    results: dict[str, list[dict[str, Any]]] = {recipe: [] for recipe in configs}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        waiting = [
            pool.submit(run, recipe, config, seed, Path(folder), given.threads, [*overrides, *given.set])
            for recipe, (config, overrides) in configs.items()
            for seed in range(given.seeds)
        ]
        for each in as_completed(waiting):
            result = each.result()
            print(report(result), flush=True)
            runs = results[result["recipe"]]
            runs.append(result)
            runs.sort(key=lambda run: run["seed"])
            how = {"jobs": given.jobs, "threads": given.threads}
            results_file.write(f"{name}_{result['recipe']}", {**how, "runs": runs})
    if failed := sum("failed" in run for runs in results.values() for run in runs):
        raise SystemExit(f"{failed} runs failed.")


def parser_of(described: str | None) -> argparse.ArgumentParser:
    """Return a parser of what all runs share."""
    parser = argparse.ArgumentParser(description=(described or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="of each run")
    parser.add_argument("--set", action="append", default=[], help="for all runs, as key=value")
    return parser


def main() -> None:
    parser = parser_of(__doc__)
    every = sorted(path.parent.name for path in RECIPES.glob("*/tiny.yaml"))
    parser.add_argument("recipes", nargs="*", default=every)
    given = parser.parse_args()
    if unknown := set(given.recipes) - set(every):
        parser.error(f"no tiny run of {', '.join(sorted(unknown))}. Choose from {', '.join(every)}")
    configs = {recipe: (str(RECIPES / recipe / "tiny.yaml"), []) for recipe in given.recipes}
    measure("recipes_three_seeds", configs, given)


if __name__ == "__main__":
    main()
