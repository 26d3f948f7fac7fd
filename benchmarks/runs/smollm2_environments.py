"""Train SmolLM2-135M-Instruct on questions or a game of another package: cold start, then reinforcement learning.

    python -m benchmarks.runs.smollm2_environments NAME [--model FOLDER] [--seed 0] [--seconds 600]
        [--cpu] [--sft KEY=VALUE ...] [--set KEY=VALUE ...]

NAME is a data set of reasoning-gym (needle_haystack, family_relationships, chain_sum, syllogism, ransom_note) or
guess_the_number, a game of TextArena. The packages are those of `agentloop envs install`, or of this interpreter.
FOLDER is the model of `agentloop.recipes.smollm2.prepare`, by default in its recipe. The cold start shows the form of
an answer, and most of its answers are wrong. Held-out reward is measured before it, after it, and during reinforcement
learning, which stops after --seconds. --sft changes the config of the cold start, --set that of the training and of all
evaluations. --cpu makes both small enough for one core. Writes results/smollm2_NAME.json; with --cpu
results/smollm2_NAME_cpu.json.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.envs.reasoning_gym.env import tasks
from benchmarks import results_file
from benchmarks.side_by_side.agentloop_run import AGENTLOOP, curve_of, held_out_of

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "recipes"
MODEL = RECIPES / "smollm2" / "data" / "model"

DATASETS = {
    "needle_haystack": {"min_num_statements": 4, "max_num_statements": 6},
    "family_relationships": {"min_family_size": 3, "max_family_size": 4},
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2},
    "syllogism": {},
    "ransom_note": {"max_note_length": 4, "max_magazine_length": 10},
}
"""Data set of reasoning-gym -> its options."""
CONFIGS = dict.fromkeys(DATASETS, RECIPES / "reasoning_gym" / "smollm2") | {
    "guess_the_number": HERE / "guess_the_number"
}
"""Name -> its config of training without .yaml, and that of the cold start without _sft.yaml."""
CPU_COLD_START = [
    "learner.device=cpu",
    "learner.token_budget=768",
    "data.train_options.size=1024",
    "batch_size=16",
]
"""With --cpu: 64 updates, as on a GPU, on fewer conversations."""
CPU_TRAINING = [
    "engine.name=hf",
    "engine.options={device: cpu, dtype: bfloat16, max_model_len: 768, max_slots: 64}",
    "engine.max_concurrency=64",
    "learner.device=cpu",
    "learner.token_budget=768",
    "data.eval_options.size=128",
    "algorithm.groups_per_step=16",
]
"""With --cpu: fewer episodes a step, sampled by the hf engine."""


def overrides_of(name: str) -> tuple[list[str], list[str]]:
    """Return the overrides of the cold start and of the training that choose the questions."""
    if name not in DATASETS:
        return [], []
    datasets = json.dumps({name: {"config": DATASETS[name]}})
    return [f"data.train_options.datasets={datasets}"], [
        f"data.{split}_options.datasets={datasets}" for split in ("train", "eval")
    ]


def run(seconds: float, *arguments: str) -> None:
    """Run `agentloop`, and stop it after a time. Its metrics until then count. Raises `CalledProcessError`."""
    process = subprocess.Popen([sys.executable, "-c", AGENTLOOP, *arguments])
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait()
    else:
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)


def stages(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run both stages, and return the held-out rewards."""
    sft_options, rl_options = overrides_of(given.name)
    cpu_cold_start, cpu_training = (CPU_COLD_START, CPU_TRAINING) if given.cpu else ([], [])
    overrides = [f"model={given.model.absolute()}", *rl_options, *cpu_training, *given.set]
    config = load_config(RunConfig, CONFIGS[given.name].with_suffix(".yaml"), overrides)
    training = folder / "training.yaml"  # the cold start evaluates with it
    training.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    shared = [f"run.seed={given.seed}"]
    cold, warm = folder / "cold-start", folder / "run"
    started = time.perf_counter()
    cold_config = str(CONFIGS[given.name]) + "_sft.yaml"
    options = [f"model={given.model.absolute()}", f"eval.rollout={training}", *sft_options, *cpu_cold_start]
    run(given.seconds, "sft", cold_config, *shared, f"run.folder={cold}", *options, *given.sft)
    cold_seconds = time.perf_counter() - started
    left = given.seconds - cold_seconds
    run(left, "train", str(training), *shared, f"model={cold}", f"run.folder={warm}", "run.save_trajectories=0")
    lines = [json.loads(line) for line in (cold / "metrics.jsonl").read_text().splitlines()]
    first = [round(line["eval/reward/mean"], 4) for line in lines if "eval/reward/mean" in line]  # none: eval.every=0
    curve = curve_of(warm / "metrics.jsonl")
    held_out = held_out_of(curve)
    return {
        "seed": given.seed,
        "best_constant_answer": round(best_constant(config.data.eval_options), 4),
        "before": first[0] if first else None,
        "after_cold_start": held_out[0],
        "after": list(held_out.values())[-1],
        "held_out_by_step": held_out,
        "steps": curve[-1]["step"],
        "cold_start_seconds": round(cold_seconds, 1),
        "seconds": round(time.perf_counter() - started, 1),
        "seconds_of_steps": curve[-1]["seconds"],
        "training": [round(line["reward"], 4) for line in curve if "reward" in line],
    }


def best_constant(held_out: Mapping[str, Any]) -> float:
    """Return the held-out reward of the best answer that is the same for all questions, or guess for all games."""
    if "datasets" in held_out:
        answers = Counter(row["answer"] for row in tasks(**held_out))
        return max(answers.values()) / answers.total()
    # An equal guess ends the game. A lost game pays how close the last guess was, with all 20 numbers equally likely.
    return max(sum(1 - abs(guess - number) / 19 for number in range(1, 21)) / 20 for guess in range(1, 21))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CONFIGS)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--sft", nargs="*", default=[])
    parser.add_argument("--set", nargs="*", default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = stages(given, Path(folder))
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    print(results_file.write(f"smollm2_{given.name}{'_cpu' if given.cpu else ''}", result, gpu=gpu).read_text())


if __name__ == "__main__":
    main()
