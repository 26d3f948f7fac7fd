"""Write a table of curves: reward after the same steps, and seconds of training to the same held-out reward.

    python -m benchmarks.side_by_side.table NAME agentloop=CURVE,CURVE trl=CURVE,CURVE [--note TEXT]

Writes results/side_by_side_NAME.json. A trainer's seconds to a reward are those until the first evaluation that reaches
it, without evaluations; the reward is the highest that every curve reaches. `outside_of_steps` are the other seconds of
the process: imports, loading, compiling, ending.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks import results_file
from benchmarks.side_by_side.agentloop_run import held_out_of

Curve = list[dict[str, float]]


def read(path: Path) -> Curve:
    """Read a curve."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def seconds_to(curve: Curve, reward: float) -> float:
    """Return the seconds until the first evaluation of at least `reward`."""
    return next(line["seconds"] for line in curve if line.get("eval_reward", float("-inf")) >= reward)


def summary(curve: Curve) -> dict[str, Any]:
    """Return the held-out rewards by step, and the seconds of a step after the first five."""
    steps = {line["step"]: line["seconds"] for line in curve if "reward" in line}
    took = [steps[step] - steps[step - 1] for step in steps if step - 1 in steps and step > 5]
    found: dict[str, Any] = {
        "held_out": held_out_of(curve),
        "training": [round(line["reward"], 4) for line in curve if "reward" in line],
        "seconds_all": max(steps.values()),
        "seconds_a_step_median": round(statistics.median(took), 3) if took else None,
    }
    if "process_seconds" in (end := curve[-1]):
        outside = end["process_seconds"] - end["evaluation_seconds"] - max(steps.values())
        found["outside_of_steps"] = round(outside, 1)
    return found


def table(curves: dict[str, list[Curve]]) -> dict[str, Any]:
    """Compare the curves of each trainer. Raises `ValueError` for a curve without a held-out reward."""
    for name, found in curves.items():
        for number, curve in enumerate(found, 1):
            if not any("eval_reward" in line for line in curve):
                raise ValueError(f"Curve {number} of {name} has no held-out reward: set --eval-every of its run.")
    best = [
        max(line["eval_reward"] for line in curve if "eval_reward" in line)
        for found in curves.values()
        for curve in found
    ]
    reached = min(best)
    return {
        "held_out_reward_that_all_reach": round(reached, 4),
        "seconds_to_it": {
            name: [round(seconds_to(curve, reached), 1) for curve in found] for name, found in curves.items()
        },
        "runs": {name: [summary(curve) for curve in found] for name, found in curves.items()},
    }


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("curves", nargs="+", metavar="TRAINER=CURVE,CURVE")
    parser.add_argument("--note", default="")
    args = parser.parse_args()
    given = dict(pair.split("=", 1) for pair in args.curves)
    result = table({name: [read(Path(path)) for path in paths.split(",")] for name, paths in given.items()})
    print(json.dumps(result, indent=1))
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    print(results_file.write(f"side_by_side_{args.name}", result | {"note": args.note}, gpu=gpu))


if __name__ == "__main__":
    main()
