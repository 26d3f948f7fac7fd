"""Compare the four staleness modes on one workload with slow tools.

    python -m benchmarks.simulation.staleness_simulation [--steps 40] [--groups 32] [--processes 2]

Runs are simulated (`benchmarks.simulation`). Run loop, policy, queue, agent loops, rendering and parsing are real.
The clock is virtual, and models give the times of engine, learner and tool. Turns and tool calls have the
distributions that TraceLab measured. All modes play the same episodes. `without_barrier` plays them without any
barrier, so no policy keeps the engine busier. `least_seconds` is a lower bound for every policy with that bound on
staleness, even one that knows all lengths. `speeds` has faster and slower learners, in half as many steps.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentloop.recipes.tiny.tokenizer import build_tokenizer
from benchmarks import results_file
from benchmarks.simulation import (
    Machine,
    Outcome,
    Workload,
    least_seconds,
    simulate,
    simulate_without_barrier,
)

MODES: dict[str, dict[str, Any]] = {
    "on_policy": {"mode": "on_policy"},
    "stream, staleness 2": {"mode": "stream", "max_staleness": 2},
    "stale, staleness 2": {"mode": "stale", "max_staleness": 2},
    "partial, staleness 1": {"mode": "partial", "max_staleness": 1},
    "partial, staleness 2": {"mode": "partial", "max_staleness": 2},
    "partial, staleness 2, late tokens masked": {"mode": "partial", "max_staleness": 2, "when_late": "mask"},
    "partial, staleness 2, late groups dropped": {"mode": "partial", "max_staleness": 2, "when_late": "drop"},
    "partial, staleness 3": {"mode": "partial", "max_staleness": 3},
    "partial, staleness 4": {"mode": "partial", "max_staleness": 4},
}
SPEEDS = {"a learner 2.5 times as fast": 0.4, "a learner 1.6 times as slow": 1.6}
MODES_OF_SPEEDS = ("on_policy", "partial, staleness 1", "partial, staleness 2", "partial, staleness 4")
BARE = "without_barrier"
SIZE = 8


@dataclass(frozen=True, kw_only=True)
class Case:
    """Settings of one simulated run."""

    section: str = "cases"
    mode: str
    steps: int
    groups: int
    """Of a step."""
    learner: float = 1.0
    """Seconds per token, relative to those of the other cases."""

    @property
    def name(self) -> str:
        return self.mode + ", tokens learned in no time" * (self.learner == 0)

    @property
    def shape(self) -> dict[str, int]:
        return {"steps": self.steps, "groups_per_step": self.groups, "group_size": SIZE}

    @property
    def machine(self) -> Machine:
        episodes = self.groups * SIZE
        return Machine(concurrency=episodes // 2, learner_token_seconds=0.15 / episodes * self.learner)


def run(case: Case) -> dict[str, Any]:
    """Run the case and return its results."""
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        build_tokenizer().save_pretrained(folder)
        parts = {"model": Path(folder), **case.shape}
        if case.mode == BARE:
            outcome = simulate_without_barrier(Workload(), case.machine, **parts)
        else:
            staleness = {"allow_uncorrected": True, **MODES[case.mode]}
            outcome = simulate(Workload(), case.machine, **parts, staleness=staleness)
    return summary(outcome) | {"cpu_seconds_to_compute": round(time.process_time() - started, 1)}


def summary(outcome: Outcome) -> dict[str, Any]:
    """Return the figures of a single case."""
    lines = outcome.metrics
    last = lines[-1] if lines else {}
    shown = {name: round(last[name], 4) for name in ("bias/tokens", "time/bias_seconds") if name in last}
    dropped = {name: int(value) for name, value in last.items() if name.startswith("queue/dropped")}
    return {
        "seconds": round(outcome.seconds),
        "episodes_trained": int(sum(line["learner/num_trajectories"] for line in lines)),
        "tokens_sampled": outcome.tokens,
        "engine_busy": round(outcome.busy, 4),
        "learner_busy": round(sum(end - start for start, end, _ in outcome.learner) / outcome.seconds, 4),
        "staleness_max": max((line.get("staleness/max", 0.0) for line in lines), default=0.0),
        "staleness_mean": round(sum(line.get("staleness/mean", 0.0) for line in lines) / max(len(lines), 1), 3),
        "tokens_trained": int(sum(line["learner/num_sampled"] for line in lines)),
    } | shown | dropped  # fmt: skip


def compare(cases: dict[str, dict[str, Any]]) -> None:
    """Add the ratios of each case to the run without barriers, and to `on_policy`."""
    for case in cases.values():
        if BARE in cases:
            case["engine_busy_over_bound"] = round(case["engine_busy"] / cases[BARE]["engine_busy"], 4)
        if "on_policy" in cases and case["episodes_trained"]:
            for what in ("episodes_trained", "tokens_trained"):
                rates = [each[what] / each["seconds"] for each in (case, cases["on_policy"])]
                case[f"{what}_a_second_over_on_policy"] = round(rates[0] / rates[1], 3)


def all_cases(steps: int, groups: int) -> list[Case]:
    shape = {"steps": steps, "groups": groups}
    half = {"steps": steps // 2, "groups": groups}
    return [
        Case(mode=BARE, **shape),
        *(Case(mode=mode, **shape) for mode in MODES),
        *(Case(mode=mode, learner=0.0, **shape) for mode in ("on_policy", "partial, staleness 2")),
        *(
            Case(section=section, mode=mode, learner=factor, **half)
            for section, factor in SPEEDS.items()
            for mode in MODES_OF_SPEEDS
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--groups", type=int, default=32, help="groups of a step, with 8 episodes each")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    cases = all_cases(args.steps, args.groups)
    machine, shape = cases[0].machine, cases[0].shape
    sections: dict[str, dict[str, Any]] = {"cases": {}, **{name: {} for name in SPEEDS}}
    result: dict[str, Any] = {
        "workload": asdict(Workload()),
        "machine": asdict(machine),
        "shape": shape,
        "episodes": args.steps * args.groups * SIZE,
        "least_seconds": {
            f"staleness {bound}": round(least_seconds(Workload(), machine, **shape, max_staleness=bound))
            for bound in range(5)
        },
    }
    with ProcessPoolExecutor(args.processes, multiprocessing.get_context("spawn")) as pool:
        for case, found in zip(cases, pool.map(run, cases), strict=True):
            sections[case.section][case.name] = found
            compare(sections[case.section])
            print(case.section, case.name, found, flush=True)
            speeds = {name: sections[name] for name in SPEEDS}
            results_file.write("staleness_simulation", result | {"cases": sections["cases"], "speeds": speeds})


if __name__ == "__main__":
    main()
