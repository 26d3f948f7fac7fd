"""Compare learning curves of the tiny recipe on several layouts with one seed.

    python -m benchmarks.learner.megatron_run --device cuda --layouts fsdp megatron,tp2 megatron,pp2 [--together]
    python -m benchmarks.learner.megatron_run --layouts fsdp megatron,tp2,pp2 --seeds 0 1 [--sandbox none]

Each layout is a run of `agentloop train tiny` from the shipped checkpoint, on the same tasks: hf engine, real tool
calls, its own `learner.ranks`. A layout is a backend and its degrees; fsdp has as many ranks as the others. Rewards
are those of each training step, and of 100 held-out questions before and after. Two seeds of fsdp show how far two
curves differ by chance.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results_file

_DEGREES = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "cp": "context_parallel"}


def settings_of(layout: str, ranks: int, seed: int, args: argparse.Namespace) -> list[str]:
    backend, *parts = layout.split(",")
    degrees = [re.fullmatch(r"([a-z]p)(\d+)", part) for part in parts]
    options = "{" + f"device: {args.device}, max_model_len: 384" + "}"
    sandbox = "{sandbox: " + args.sandbox + "}"
    return [
        f"learner.backend={backend}",
        f"learner.ranks={ranks}",
        *[f"learner.{_DEGREES[found[1]]}={found[2]}" for found in degrees if found],
        f"learner.device={args.device}",
        f"engine.options={options}",
        "env.factory=agentloop.envs.tool_env:ToolEnv",
        "env.tools=[{name: 'agentloop.tools.code_interpreter:CodeInterpreter', options: " + sandbox + "}]",
        f"run.steps={args.steps}",
        f"run.save_every={args.steps}",
        f"run.seed={seed}",
        f"eval.every={args.steps}",
        "run.loggers=[]",
        "run.save_trajectories=0",
        *args.settings,
    ]


def ranks_of(layout: str) -> int:
    return math.prod(int(found) for found in re.findall(r",[a-z]p(\d+)", layout))


def log_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def run(settings: list[str], folder: Path) -> None:
    """Train in this process."""
    from agentloop.api.recipe import load_run_config
    from agentloop.trainer.run.train import train

    asyncio.run(train(load_run_config("tiny", settings), folder))


def curve(folder: Path) -> dict[str, Any]:
    """Return the metrics that the run wrote."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "reward/mean" in line]
    held_out = [line["eval/reward/mean"] for line in lines if "eval/reward/mean" in line]
    return {
        "rewards": [round(line["reward/mean"], 4) for line in steps],
        "losses": [line["learner/loss"] for line in steps],
        "grad_norms": [line["learner/grad_norm"] for line in steps],
        "held_out": held_out,
        "logprob_diff_max": max(line.get("learner/logprob_diff_max", 0.0) for line in steps),
    }


def compared(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the largest difference of a step's mean reward and of the last quarter's mean, for each pair of runs."""
    found = {}
    for one, other in itertools.combinations(runs, 2):
        first, second = np.array(one["rewards"]), np.array(other["rewards"])
        last = -max(len(first) // 4, 1)
        name = f"{one['layout']} seed {one['seed']} | {other['layout']} seed {other['seed']}"
        found[name] = {
            "largest_difference": float(np.abs(first - second).max()),
            "first_step_difference": float(abs(first[0] - second[0])),
            "difference_of_the_last_quarter": float(abs(first[last:].mean() - second[last:].mean())),
            "difference_of_the_means": float(abs(first.mean() - second.mean())),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", default=["fsdp", "megatron,tp2", "megatron,pp2"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of fsdp; other layouts use the first")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--sandbox", default="local", help="isolation level of the code interpreter")
    parser.add_argument("--together", action="store_true", help="start all runs at the same time")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "megatron-run")
    parser.add_argument("--settings", nargs="*", default=[], help="key=value, for all runs")
    parser.add_argument("--one", nargs=3, metavar=("LAYOUT", "RANKS", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        layout, ranks, seed = args.one
        run(settings_of(layout, int(ranks), int(seed), args), args.folder)
        return
    ranks = max(ranks_of(layout) for layout in args.layouts)
    cases = [(layout, seed) for layout in args.layouts for seed in (args.seeds if layout == "fsdp" else args.seeds[:1])]
    started = time.perf_counter()
    processes = []
    for layout, seed in cases:
        folder = args.folder / f"{layout.replace(',', '-')}-{seed}"
        plain = ["--steps", args.steps, "--device", args.device, "--sandbox", args.sandbox, "--folder", folder]
        plain += ["--settings", *args.settings]
        command = [sys.executable, "-m", "benchmarks.learner.megatron_run", "--one", layout, ranks, seed, *plain]
        log_file(folder).parent.mkdir(parents=True, exist_ok=True)
        log = log_file(folder).open("w")
        processes.append((subprocess.Popen([str(part) for part in command], stdout=log, stderr=log), folder))
        if not args.together:
            processes[-1][0].wait()
    runs = []
    for (layout, seed), (process, folder) in zip(cases, processes, strict=True):
        if process.wait() != 0:
            sys.exit(f"{layout} failed:\n" + log_file(folder).read_text()[-3000:])
        runs.append({"layout": layout, "ranks": ranks, "seed": seed, **curve(folder)})
        print(json.dumps(runs[-1]), flush=True)
    result = {"steps": args.steps, "runs": runs, "compared": compared(runs)}
    result["seconds_in_all"] = round(time.perf_counter() - started, 1)
    print(json.dumps(result["compared"], indent=1))
    gpu = None
    if args.device == "cuda":
        import torch

        gpu = torch.cuda.get_device_name()
    print(results_file.write(f"megatron_run_{ranks}_{args.device}", result, gpu=gpu))


if __name__ == "__main__":
    main()
