"""Measure how long a start takes: `agentloop train` until its first step has ended, `vllm serve` until it answers.

    python -m benchmarks.runs.start_up MODEL [--name NAME] [--config RECIPE] [--set KEY=VALUE] [--serve KEY=VALUE]

Each program starts twice, the first time with empty caches of compiled code (vLLM, inductor, Triton, CUDA). The page
cache is not emptied. `vllm serve` gets the model, length and share of memory of the run's config; `--serve` sets
further options. Writes results/start_up_NAME.json after each start. For a model with random weights, set
`env.reward=benchmarks.runs.start_up:parity`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from agentloop.api.recipe import load_run_config
from agentloop.types.trajectory import Trajectory
from benchmarks import results_file
from benchmarks.side_by_side.agentloop_run import AGENTLOOP
from benchmarks.vllm_server import vllm_server

_PARTS = ("load_workers", "load_learner", "load", "rollout", "train", "publish", "step")


def caches(folder: Path) -> dict[str, str]:
    """Return the environment of a program whose compiled code is cached below `folder`."""
    names = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME")
    return os.environ | {name: str(folder / name.lower()) for name in names}


def train(config: str, model: str, overrides: list[str], environment: dict[str, str], folder: Path) -> dict[str, Any]:
    """Run one step; return the seconds until it ends, until the process ends, and those of each part."""
    arguments = [
        "train",
        config,
        f"model={model}",
        f"run.folder={folder}",
        "run.steps=1",
        "data.eval=null",
        "eval.every=0",
        "learner.warmup_updates=0",
        *overrides,
    ]
    start = time.perf_counter()
    with folder.with_suffix(".log").open("w") as log:
        subprocess.run(
            [sys.executable, "-c", AGENTLOOP, *arguments], check=True, env=environment, stdout=log, stderr=log
        )
    seconds = time.perf_counter() - start
    began = time.time() - seconds
    metrics = folder / "metrics.jsonl"
    (line,) = [found for text in metrics.read_text().splitlines() if (found := json.loads(text))["step"] == 1]
    parts = {name: round(line[f"time/{name}"], 2) for name in _PARTS}
    return {"first_step_ended": round(metrics.stat().st_mtime - began, 2), "all": round(seconds, 2), "parts": parts}


def serve(model: str, options: dict[str, Any], environment: dict[str, str], log: Path) -> dict[str, Any]:
    """Start `vllm serve`; return the seconds until its first answer."""
    start = time.perf_counter()
    with vllm_server(model, options, log, environment=environment):
        return {"first_answer": round(time.perf_counter() - start, 2)}


def parity(trajectory: Trajectory, task: dict[str, Any]) -> float:
    """Reward half of all answers, also those of random weights: without differences nothing would be trained."""
    return float(trajectory.ids[-1] % 2)


def main() -> None:
    """Start each program cold and warm, and write the seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--name", default="smollm2")
    parser.add_argument("--config", default="smollm2")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--serve", action="append", default=[])
    parser.add_argument("--folder", type=Path, help="keep logs and runs here")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="start-up-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty: its caches would make the cold start warm. Give a new folder")
    run = load_run_config(args.config, [f"model={args.model}", *args.overrides])
    given = {"max_model_len", "gpu_memory_utilization", "max_num_seqs", "enforce_eager", "dtype"}
    options = {name: value for name, value in run.engine.options.items() if name in given}
    options |= dict(pair.split("=", 1) for pair in args.serve)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    result: dict[str, Any] = {}
    for state in ("cold", "warm"):
        environment = caches(folder / "caches-of-serve")
        result[f"vllm serve, {state}"] = serve(args.model, options, environment, folder / f"serve-{state}.log")
        results_file.write(f"start_up_{args.name}", result, gpu=gpu)
        environment = caches(folder / "caches-of-train")
        run_folder = folder / f"train-{state}"
        result[f"agentloop train, {state}"] = train(args.config, args.model, args.overrides, environment, run_folder)
        print(results_file.write(f"start_up_{args.name}", result, gpu=gpu), json.dumps(result, indent=1), flush=True)


if __name__ == "__main__":
    main()
