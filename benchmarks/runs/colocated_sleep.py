"""Measure steps on one GPU that engine and learner share: memory of each, and the cost of switches.

    python -m benchmarks.runs.colocated_sleep --shape 1.7B --engine-share 0.85              # placement.sleep=true
    python -m benchmarks.runs.colocated_sleep --shape 0.6B --engine-share 0.35 --awake      # both awake
    python -m benchmarks.runs.colocated_sleep --shape tiny --engine hf --steps 2            # on a CPU

The script runs `agentloop train` with random weights of the shape of a Qwen3, and episodes of one turn of `--tokens`.
`expected_gib` is the planner's estimate of the learner's peak. With the engine's share it shows whether both would fit
at the same time. The result is written again after every step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from agentloop.config.run import RunConfig
from agentloop.trainer.run.train import train
from agentloop.trainer.schedule.observers import Observer
from agentloop.trainer.sizing.layouts import Layout
from agentloop.trainer.sizing.memory import training_memory
from agentloop.trainer.sizing.place import planned
from benchmarks import results_file
from benchmarks.learner.qwen3 import empty_model, model_config, random_model

KEPT = (
    "time/step", "time/rollout", "time/train", "time/publish", "time/sleep", "time/wake", "memory/asleep_gib",
    "memory/rollout_gib", "learner/memory_peak_gib", "learner/logprob_diff", "learner/seconds/forward_backward",
    "learner/num_tokens", "workers/engine_died",
)  # fmt: skip


def tasks(num: int = 4096) -> list[dict[str, Any]]:
    """Return unrelated rows."""
    return [{"id": str(k), "prompt": [{"role": "user", "content": f"Count from {k}."}]} for k in range(num)]


def reward(trajectory: Any, task: Any) -> float:
    """Return arbitrary, unequal rewards."""
    return float(sum(trajectory.token_ids.tolist()) % 7)


def config_of(args: argparse.Namespace, model: Path) -> RunConfig:
    here, cuda = Path(__file__).absolute(), torch.cuda.is_available()
    options: dict[str, Any] = {"vllm": {"gpu_memory_utilization": args.engine_share}, "hf": {}}[args.engine]
    options |= args.engine_options
    return RunConfig.model_validate(
        {
            "model": str(model),
            "data": {"train": f"{here}:tasks"},
            "env": {"reward": f"{here}:reward"},
            "limits": {"max_turns": 1, "max_turn_tokens": args.tokens, "max_tokens": args.tokens + 64},
            "engine": {"name": args.engine, "options": options},
            "placement": {"sleep": not args.awake},
            "algorithm": {"groups_per_step": args.episodes // 8, "group_size": 8},
            "learner": {
                "lr": 1e-6,
                "compute_dtype": "bfloat16" if cuda else "float32",
                "token_budget": args.budget,
                "compile_layers": False,
            },
            "run": {"steps": args.steps, "save_every": args.steps, "loggers": []},
        }
    )


def expected_gib(config: RunConfig, shape: str) -> float:
    """Return the expected peak memory of the learner."""
    run = planned(config, model_config(shape))
    layout = Layout.of(config.learner, 1)
    micro_batches = run.work.micro_batches(layout)
    memory = training_memory(run.shape, layout, precision=run.precision, micro_batches=micro_batches, gather_once=True)
    return memory.total / 2**30


class Results(Observer):
    """Logger that writes the results of each step."""

    def __init__(self, name: str, result: dict[str, Any]) -> None:
        self._name, self._result = name, result

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._result["steps"].append({key: round(metrics[key], 4) for key in KEPT if key in metrics})
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        results_file.write(self._name, self._result, gpu=gpu)
        print(step, self._result["steps"][-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="1.7B")
    parser.add_argument("--engine", choices=["vllm", "hf"], default="vllm")
    parser.add_argument(
        "--engine-share", type=float, default=0.85, help="share of the GPU's memory while the engine is awake"
    )
    parser.add_argument("--awake", action="store_true", help="no sleep: both must fit at the same time")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="as JSON")
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--budget", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    model = random_model(args.shape, args.folder)
    empty_model(args.shape, model)  # the tokenizer
    torch.cuda.empty_cache()
    config = config_of(args, model)
    total = torch.cuda.get_device_properties(0).total_memory / 2**30 if torch.cuda.is_available() else None
    result = {
        "settings": {key: value for key, value in vars(args).items() if key != "folder"},
        "gpu_gib": total,
        "expected_gib": round(expected_gib(config, args.shape), 1),
        "steps": [],
    }
    name = f"colocated_sleep_{args.shape}{'_awake' if args.awake else ''}"
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(train(config, Path(folder), Results(name, result)))


if __name__ == "__main__":
    main()
