"""Train the recipe `smollm2` in bfloat16 and in FP8, several seeds each, and evaluate what they learned in both.

    python -m benchmarks.side_by_side.fp8_curves MODEL FOLDER [--seeds 0 1 2] [--steps 20] [--samples 8]

MODEL is a cold start (`agentloop sft smollm2`). The seeds of a case share a GPU. Evaluations during a run use its own
engine, in FP8 if the run does. After the run each trained model plays `--samples` episodes of each held-out task with
an engine in bfloat16 and with one in FP8, so that the error of the mean is a third of that of one evaluation. FOLDER
gets the runs; the result is written after each case.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import results_file
from benchmarks.side_by_side.agentloop_run import AGENTLOOP, held_out_of

_FP8_ENGINE = "engine.options.quantization=fp8"
CASES = {
    "bfloat16": [],
    "fp8": ["learner.fp8=row", _FP8_ENGINE],
    "fp8_learner": ["learner.fp8=row"],
}
ENGINES = {"bfloat16": "engine.options.quantization=null", "fp8": _FP8_ENGINE}
_SHARED = ["engine.options.kv_cache_memory_bytes=8000000000", "engine.options.gpu_memory_utilization=0.2"]
"""Several engines share the GPU, so none may measure how much of it is free."""


def together(commands: Sequence[Sequence[str]]) -> None:
    """Run all commands at the same time. Raises `RuntimeError` if one fails."""
    running = [subprocess.Popen(command) for command in commands]
    if failed := [process.args for process in running if process.wait()]:
        raise RuntimeError(f"These commands failed: {failed}.")


def training(folder: Path, case: str, seed: int, args: argparse.Namespace) -> list[str]:
    settings = [*_SHARED, "learner.corrections=[truncate]", *CASES[case]]
    curve = folder / f"{case}-{seed}.jsonl"
    return [
        *(sys.executable, "-m", "benchmarks.side_by_side.agentloop_run", args.model, str(curve)),
        *("--steps", str(args.steps), "--lr", "3e-5", "--warmup", "3", "--eval-every", "10", "--seed", str(seed)),
        *(part for setting in settings for part in ("--set", setting)),
    ]


def evaluation(run: Path, engine: str, samples: int) -> list[str]:
    """Return the command that writes into `run-engine`."""
    command = [sys.executable, "-c", AGENTLOOP, "rollout", str(run), "--tasks", "eval", "--samples", str(samples)]
    settings = [*_SHARED, "sampling.temperature=1.0", ENGINES[engine]]
    return [*command, "--output", f"{run}-{engine}", *settings]


def curve_of(folder: Path, case: str, seed: int) -> dict[str, Any]:
    """Return the rewards of one finished run and of its evaluations afterwards."""
    run = folder / f"{case}-{seed}"
    *steps, _ = map(json.loads, run.with_suffix(".jsonl").read_text().splitlines())
    return {
        "seed": seed,
        "during_the_run": held_out_of(steps),
        "training": [round(step["reward"], 4) for step in steps if "reward" in step],
        "afterwards": {name: json.loads(Path(f"{run}-{name}/summary.json").read_text()) for name in ENGINES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--samples", type=int, default=8)
    args = parser.parse_args()
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    args.folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"steps": args.steps, "samples": args.samples}
    for case in args.cases:
        together([training(args.folder, case, seed, args) for seed in args.seeds])
        runs = [args.folder / f"{case}-{seed}" for seed in args.seeds]
        together([evaluation(run, engine, args.samples) for run in runs for engine in ENGINES])
        results[case] = [curve_of(args.folder, case, seed) for seed in args.seeds]
        for result in results[case]:
            means = {name: figures["mean reward"] for name, figures in result["afterwards"].items()}
            print(case, result["seed"], result["during_the_run"], means, flush=True)
        results_file.write("smollm2_fp8_curves", results, gpu=gpu)


if __name__ == "__main__":
    main()
