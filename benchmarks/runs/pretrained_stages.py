"""Measure the stages of the recipe `smollm2`: held-out reward before the cold start, after it, and after GRPO.

    python -m benchmarks.runs.pretrained_stages FOLDER [--seeds 3] [--jobs 3] [--cores 2] [--config FILE]
        [--sft-config FILE] [--sft KEY=VALUE] ... [--rl KEY=VALUE] ...

    python -m benchmarks.runs.pretrained_stages --draw RESULT.json PICTURE

FOLDER gets the runs; a second start with the same settings goes on with stages that did not end. Expects the model and
data of `agentloop.recipes.smollm2.prepare` in the recipe's folder. Writes results/pretrained_stages_cpu.json or
_cuda.json, after each seed. With several jobs seconds are those of runs that share the machine; `--cores` gives each
job its own cores, from `--first-core`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from benchmarks import results_file
from benchmarks.side_by_side.agentloop_run import AGENTLOOP, curve_of, held_out_of


def command(folder: Path, pinned: list[str], *arguments: str) -> float:
    """Run `agentloop` with its output in FOLDER.log; return its seconds. A run that ended keeps its seconds."""
    ended = folder.with_suffix(".seconds")
    if not ended.exists():
        start = time.perf_counter()
        program = [*pinned, sys.executable, "-c", AGENTLOOP]
        with folder.with_suffix(".log").open("a") as log:
            subprocess.run([*program, *arguments, f"run.folder={folder}"], check=True, stdout=log, stderr=log)
        ended.write_text(f"{time.perf_counter() - start:.1f}")
    return float(ended.read_text())


def check_settings(folder: Path, given: dict[str, Any]) -> None:
    """Write the settings of the runs to their folder. Raises `SystemExit` if its runs have other settings.

    A folder whose runs are older than this check has no settings, and is taken.
    """
    path = folder / "settings.json"
    if path.exists() and (kept := json.loads(path.read_text())) != given:
        raise SystemExit(f"{folder} has runs with other settings: {kept}. Give these settings, or a new folder.")
    path.write_text(json.dumps(given))


def stages(folder: Path, seed: int, args: argparse.Namespace, pinned: list[str]) -> dict[str, Any]:
    """Run both stages with one seed."""
    start = folder / f"sft-{seed}"
    sft_s = command(start, pinned, "sft", args.sft_config, f"run.seed={seed}", *args.sft)
    end = folder / f"rl-{seed}"
    rl_s = command(end, pinned, "train", args.config, f"model={start / 'model'}", f"run.seed={seed}", *args.rl)
    cold = [json.loads(line) for line in (start / "metrics.jsonl").read_text().splitlines()]
    cold_start = [line["eval/reward/mean"] for line in cold if "eval/reward/mean" in line]
    curve = curve_of(end / "metrics.jsonl")
    held_out = held_out_of(curve)
    return {
        "seed": seed,
        "before": round(cold_start[0], 4) if len(cold_start) > 1 else None,
        "after_sft": round(cold_start[-1], 4) if cold_start else held_out[0],
        "after_rl": list(held_out.values())[-1],
        "held_out_by_step": held_out,
        "sft_seconds": sft_s,
        "rl_seconds": rl_s,
        "rl_seconds_of_steps": curve[-1]["seconds"],
    }


def draw(result: Path, picture: Path) -> None:
    """Draw the held-out reward of each seed over the stages."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (whole, near) = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for run in json.loads(result.read_text())["result"]["runs"]:
        if "failed" in run:
            continue
        steps = [int(step) for step in run["held_out_by_step"]]
        rewards = list(run["held_out_by_step"].values())
        whole.plot(["before", "cold start", "GRPO"], [run["before"], run["after_sft"], run["after_rl"]], marker="o")
        near.plot(steps, rewards, marker="o", label=f"seed {run['seed']}")
    whole.set(title="held-out reward by stage", ylim=(-0.05, 1.0))
    near.set(title="during GRPO", xlabel="step", xticks=steps)
    near.legend()
    figure.savefig(picture, dpi=120)


def main() -> None:
    """Run all seeds and write the result."""
    if sys.argv[1:2] == ["--draw"]:
        draw(*map(Path, sys.argv[2:]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cores", type=int, default=0, help="cores of each job; 0: all, shared")
    parser.add_argument("--first-core", type=int, default=0)
    parser.add_argument("--config", default="smollm2")
    parser.add_argument("--sft-config", default="smollm2")
    parser.add_argument("--sft", action="append", default=[])
    parser.add_argument("--rl", action="append", default=[])
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    check_settings(args.folder, {name: getattr(args, name) for name in ("config", "sft_config", "sft", "rl")})
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    result: list[dict[str, Any]] = []

    free: SimpleQueue[int] = SimpleQueue()  # each job has cores that no other job has at that time
    for job in range(args.jobs):
        free.put(args.first_core + job * args.cores)

    def run(seed: int) -> dict[str, Any]:
        first = free.get()
        pinned = ["taskset", "-c", f"{first}-{first + args.cores - 1}"] if args.cores else []
        try:
            return stages(args.folder.absolute(), seed, args, pinned)
        except subprocess.CalledProcessError as error:
            return {"seed": seed, "failed": f"exit status {error.returncode}; the logs are in {args.folder}"}
        finally:
            free.put(first)

    with ThreadPoolExecutor(args.jobs) as pool:
        for future in as_completed([pool.submit(run, seed) for seed in range(args.seeds)]):
            result = sorted([*result, future.result()], key=lambda found: found["seed"])
            written = results_file.write(f"pretrained_stages_{'cuda' if gpu else 'cpu'}", {"runs": result}, gpu=gpu)
    print(written.read_text())
    if failed := [found["seed"] for found in result if "failed" in found]:
        raise SystemExit(f"These seeds failed: {failed}.")


if __name__ == "__main__":
    main()
