"""Turns that go to idle engines in the tail of a round: what it would bring at the most.

    python benchmarks/tail_simulation.py [--rounds 10]

Four engines play rounds, each of which waits for its last episode; groups are given out whole, to the worker with most
room. In the tail, when no group waits, a turn goes to the engine that samples fewest, which costs nothing here: no
prompt is computed again. Time is virtual, and a decoding step takes as long as `Machine` says. Writes
results/tail_simulation.json.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import results_file

from agentloop.recipes.tiny.tokenizer import build_tokenizer
from benchmarks.simulation import Machine, Rounds, Workload, simulate_rounds

WORKLOADS = {
    "tools as TraceLab measured": Workload(),
    "tools that answer at once": Workload(tool_seconds=0.001, tool_sigma=0.1),
    "long turns, few tools": Workload(
        turns=2, turn_tokens=600.0, max_turn_tokens=16384, tool_seconds=0.001, tool_sigma=0.1
    ),
}
MACHINES = {
    "decoding steps of 50 ms, and 0.35 ms a request": Machine(concurrency=64),
    "decoding steps of 10 ms, and 0.35 ms a request": Machine(concurrency=64, step_seconds=0.01),
}
ENGINES, SIZE = 4, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    result: dict[str, Any] = {"engines": ENGINES, "rounds": args.rounds, "group_size": SIZE, "cases": []}
    with tempfile.TemporaryDirectory() as folder:
        build_tokenizer().save_pretrained(folder)
        for (name, workload), (speed, machine), groups in [
            (each, speed, groups) for each in WORKLOADS.items() for speed in MACHINES.items() for groups in (32, 64)
        ]:
            shape = {"engines": ENGINES, "rounds": args.rounds, "groups": groups, "group_size": SIZE}

            def play(levels: bool) -> Rounds:
                return simulate_rounds(workload, machine, model=Path(folder), **shape, levels=levels)  # noqa: B023

            stays, moves = play(False), play(True)
            case = {
                "workload": name,
                "machine": speed,
                "groups_a_round": groups,
                "seconds": round(stays.seconds, 1),
                "seconds_with_turns_that_move": round(moves.seconds, 1),
                "faster_by": round(stays.seconds / moves.seconds - 1, 4),
                "turns_moved": round(moves.moved / moves.turns, 3),
            }
            print(case, flush=True)
            result["cases"].append(case)
    result["workloads"] = {name: asdict(workload) for name, workload in WORKLOADS.items()}
    results_file.write("tail_simulation", result)


if __name__ == "__main__":
    main()
