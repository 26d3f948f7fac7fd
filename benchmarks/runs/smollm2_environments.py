"""Train SmolLM2-135M-Instruct on questions or a game of another package, and write held-out reward before and after.

    python -m benchmarks.runs.smollm2_environments syllogism | ransom_note | guess_the_number
        [--model FOLDER] [--seed 0] [--set KEY=VALUE ...]

The first two are data sets of reasoning-gym, the third is a game of TextArena. The packages are those of
`agentloop envs install`, or of this interpreter. FOLDER is the model of `agentloop.recipes.smollm2.prepare`, by default
in its recipe. Writes results/smollm2_NAME.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import results_file
from benchmarks.side_by_side.agentloop_run import AGENTLOOP, curve_of

ROOT = Path(__file__).parents[2]
QUESTIONS = str(ROOT / "recipes" / "reasoning_gym" / "smollm2.yaml")
GAME = str(Path(__file__).with_name("guess_the_number.yaml"))
MODEL = ROOT / "recipes" / "smollm2" / "data" / "model"

CONFIGS = {
    "syllogism": (QUESTIONS, "{syllogism: {}}"),
    "ransom_note": (QUESTIONS, "{ransom_note: {config: {max_note_length: 4, max_magazine_length: 10}}}"),
    "guess_the_number": (GAME, None),
}
"""Name -> its config, and the data sets of the questions."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CONFIGS)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[])
    given = parser.parse_args()
    config, datasets = CONFIGS[given.name]
    own = [f"model={given.model.absolute()}", f"run.seed={given.seed}", "run.save_trajectories=0"]
    if datasets is not None:
        own += [f"data.train_options.datasets={datasets}", f"data.eval_options.datasets={datasets}"]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", AGENTLOOP, "train", config, *own, f"run.folder={run}", *given.set], check=True
        )
        seconds = time.perf_counter() - started
        curve = curve_of(run / "metrics.jsonl")
    held_out = {line["step"]: round(line["eval_reward"], 4) for line in curve if "eval_reward" in line}
    result = {
        "seed": given.seed,
        "before": next(iter(held_out.values())),
        "after": list(held_out.values())[-1],
        "held_out_by_step": held_out,
        "seconds": round(seconds, 1),
        "seconds_of_steps": curve[-1]["seconds"],
        "training": [round(line["reward"], 4) for line in curve if "reward" in line],
    }
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    print(results_file.write(f"smollm2_{given.name}", result, gpu=gpu).read_text())


if __name__ == "__main__":
    main()
