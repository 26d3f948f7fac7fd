"""Train the recipe `smollm2` with agentloop, and write its curve as `trl_run` does.

    python -m benchmarks.side_by_side.agentloop_run MODEL CURVE [--steps 60] [--config FILE] [--set KEY=VALUE]

CURVE gets a JSON line for each step: `step`, `seconds` of training without evaluations, `reward`, and `eval_reward`
after an evaluation. The last line has the seconds of the whole process and of its evaluations. The run's own folder is
CURVE without its suffix.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

AGENTLOOP = "import sys; from agentloop.cli import main; sys.argv[0] = 'agentloop'; main()"


def curve_of(metrics: Path) -> list[dict[str, float]]:
    """Read a run's metrics."""
    lines, seconds = [], 0.0
    for text in metrics.read_text().splitlines():
        found = json.loads(text)
        if found["step"]:
            seconds += found["time/step"] - found.get("time/eval", 0.0)
        line = {"step": found["step"], "seconds": round(seconds, 3)}
        names = {
            "reward": "reward/mean",
            "eval_reward": "eval/reward/mean",
            "train": "time/train",
            "rollout": "time/rollout",
        }
        lines.append(line | {name: found[key] for name, key in names.items() if key in found})
    return lines


def held_out_of(curve: Sequence[Mapping[str, float]]) -> dict[float, float]:
    """Return the held-out reward of each evaluated step."""
    return {line["step"]: round(line["eval_reward"], 4) for line in curve if "eval_reward" in line}


def new_curve(text: str) -> Path:
    """Return the path of a curve whose run has no folder yet: a run that goes on would have the times of its rest."""
    path = Path(text)
    if not path.suffix:
        raise argparse.ArgumentTypeError(f"{text} has no suffix. Add .jsonl: the run's folder has the name without it.")
    if path.with_suffix("").exists():
        raise argparse.ArgumentTypeError(f"{path.with_suffix('')} exists. Remove it, or use another name.")
    return path


def parser_of(description: str | None, *paths: str) -> argparse.ArgumentParser:
    """Return a parser of the model, of `paths`, and of the settings that all trainers share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name in paths:
        parser.add_argument(name, type=new_curve if name == "curve" else Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--eval-every", type=int, default=20)
    return parser


def check_installed(parser: argparse.ArgumentParser, package: str, version: str) -> None:
    """End the program with the pip command if a package is not installed."""
    if importlib.util.find_spec(package) is None:
        parser.error(f"{package} is not installed. Run: pip install {package}=={version}")


def main() -> None:
    """Train."""
    parser = parser_of(__doc__, "curve")
    parser.add_argument("--config", default="smollm2")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    args = parser.parse_args()
    folder = args.curve.with_suffix("")
    start = time.perf_counter()
    subprocess.run(
        [
            *(sys.executable, "-c", AGENTLOOP, "train", args.config, f"model={args.model}", f"run.folder={folder}"),
            *(f"run.steps={args.steps}", f"run.seed={args.seed}", f"learner.lr={args.lr}"),
            *(f"learner.warmup_updates={args.warmup}", f"algorithm.groups_per_step={args.groups}"),
            *(f"eval.every={args.eval_every}", "run.save_trajectories=0", *args.overrides),
        ],
        check=True,
    )
    seconds = time.perf_counter() - start
    lines = curve_of(folder / "metrics.jsonl")
    metrics = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = sum(line.get("time/eval", 0.0) for line in metrics)
    lines.append({"process_seconds": round(seconds, 1), "evaluation_seconds": round(evaluations, 1)})
    args.curve.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
