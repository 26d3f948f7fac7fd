"""The four modes of staleness on one workload: what each makes of an engine while tools are slow.

    python benchmarks/staleness_simulation.py [--steps 40] [--groups 32]

Runs are simulated: run loop, policy, queue, agent loops, rendering and parsing are the real ones; the clock is virtual,
and engine, learner and tool take the time of a model (`agentloop.trainer.simulation`). Turns and tool calls have the
distributions that TraceLab measured. All modes play the same episodes. `without_barrier` plays them with nobody to wait
for but the machine: no policy can keep the engine busier. `least_seconds` is what no policy with that bound on
staleness can be faster than, though it knew all lengths. Where the machine is no limit (an engine that has room for all
and is never slower, a learner that takes no time) the last cases say what waiting for stragglers costs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import results_file

from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.trainer.simulation import (
    Machine,
    Outcome,
    Workload,
    least_seconds,
    simulate,
    simulate_without_barrier,
)

CASES: dict[str, dict[str, Any]] = {
    "on_policy": {"mode": "on_policy"},
    "partial, staleness 2": {"mode": "partial", "max_staleness": 2},
    "partial, staleness 2, late tokens masked": {"mode": "partial", "max_staleness": 2, "when_late": "mask"},
    "partial, staleness 2, late groups dropped": {"mode": "partial", "max_staleness": 2, "when_late": "drop"},
    "partial, staleness 3": {"mode": "partial", "max_staleness": 3},
    "partial, staleness 4": {"mode": "partial", "max_staleness": 4},
    "stale, staleness 2": {"mode": "stale", "max_staleness": 2},
    "stream, staleness 2": {"mode": "stream", "max_staleness": 2},
}
SIZE = 8
UNLIMITED = {"concurrency": 100_000, "request_seconds": 0.0}
NO_TIME = {"learner_step_seconds": 0.0, "learner_token_seconds": 0.0}
IDEAL: dict[str, dict[str, float]] = {
    "partial, staleness 2, an engine without limits": UNLIMITED,
    "partial, staleness 2, a learner that takes no time": NO_TIME,
    "partial, staleness 2, both": {**UNLIMITED, **NO_TIME},
}


def summary(outcome: Outcome, bound: Outcome, computed: float) -> dict[str, Any]:
    """What a case came to; `bound` is the run without barriers."""
    lines = outcome.metrics
    last = lines[-1] if lines else {}
    trained = int(sum(line["learner/num_trajectories"] for line in lines))
    shown = {name: round(last[name], 4) for name in ("bias/tokens", "time/bias_seconds") if name in last}
    dropped = {name: int(value) for name, value in last.items() if name.startswith("queue/dropped")}
    return {
        "seconds": round(outcome.seconds),
        "episodes_trained": trained,
        "tokens_sampled": outcome.tokens,
        "engine_busy": round(outcome.busy, 4),
        "engine_busy_over_bound": round(outcome.busy / bound.busy, 4),
        "learner_busy": round(sum(end - start for start, end, _ in outcome.learner) / outcome.seconds, 4),
        "staleness_max": max((line.get("staleness/max", 0.0) for line in lines), default=0.0),
        "staleness_mean": round(sum(line.get("staleness/mean", 0.0) for line in lines) / max(len(lines), 1), 3),
        "tokens_trained": int(sum(line["learner/num_sampled"] for line in lines)),
        "cpu_seconds_to_compute": round(computed, 1),
    } | shown | dropped  # fmt: skip


def over(seconds: float, cases: dict[str, Any]) -> float:
    """How many times as fast as `on_policy`."""
    return round(cases["on_policy"]["seconds"] / seconds, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--groups", type=int, default=32, help="of a step, with 8 episodes each")
    args = parser.parse_args()
    shape = {"steps": args.steps, "groups_per_step": args.groups, "group_size": SIZE}
    machine = Machine(concurrency=args.groups * SIZE // 2, learner_token_seconds=0.15 / (args.groups * SIZE))
    workload = Workload()
    setting = {
        "workload": asdict(workload),
        "machine": asdict(machine),
        "shape": shape,
        "episodes": args.steps * args.groups * SIZE,
    }
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        build_tokenizer().save_pretrained(model)
        started = time.process_time()
        bound = simulate_without_barrier(workload, machine, model=model, **shape)
        cases = {"without_barrier": summary(bound, bound, time.process_time() - started)}
        print("without_barrier", cases["without_barrier"], flush=True)
        for name, settings in CASES.items():
            started = time.process_time()
            staleness = {"allow_uncorrected": True, **settings}
            outcome = simulate(workload, machine, model=model, **shape, staleness=staleness)
            case = cases[name] = summary(outcome, bound, time.process_time() - started)
            base = cases["on_policy"]
            for what in ("episodes_trained", "tokens_trained"):
                rates = [each[what] / each["seconds"] for each in (case, base)]
                case[f"{what}_a_second_over_on_policy"] = round(rates[0] / rates[1], 3)
            print(name, case, flush=True)
            results_file.write("staleness_simulation", setting | {"cases": cases})
        staleness = {"allow_uncorrected": True, **CASES["partial, staleness 2"]}
        for name, speeds in IDEAL.items():
            ideal = replace(machine, **speeds)
            seconds = simulate(workload, ideal, model=model, **shape, staleness=staleness).seconds
            cases[name] = {"seconds": round(seconds), "episodes_trained_a_second_over_on_policy": over(seconds, cases)}
            print(name, cases[name], flush=True)
    for bound in (1, 2, 3, 4):
        seconds = least_seconds(workload, machine, **shape, max_staleness=bound)
        cases[f"least_seconds, staleness {bound}"] = {"seconds": round(seconds)}
    results_file.write("staleness_simulation", setting | {"cases": cases})


if __name__ == "__main__":
    main()
