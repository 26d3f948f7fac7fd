"""Draw docs/pictures/async.png: the engine and the learner of a small simulated run in each of the four modes.

python -m benchmarks.simulation.staleness_timeline [docs/pictures/async.png]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from agentloop.recipes.tiny.tokenizer import build_tokenizer
from benchmarks.simulation import Machine, Outcome, Workload, simulate

MODES = {"on_policy": None, "stream": 2, "stale": 2, "partial": 2}
MACHINE = Machine(concurrency=32, learner_step_seconds=40.0)


def draw(axes: plt.Axes, name: str, outcome: Outcome, until: float) -> None:
    """Draw sampling requests as an area, and training steps as bars below."""
    times, running = zip(*outcome.engine, strict=True)
    axes.fill_between(times, running, step="post", color="#4878a8", linewidth=0)
    spans = [(start, end - start) for start, end, _ in outcome.learner]
    axes.broken_barh(spans, (-9, 6), facecolors=["#d1803a", "#e8b583"] * len(spans))
    axes.set_xlim(0, until)
    axes.set_ylim(-11, MACHINE.concurrency)
    axes.set_yticks([-6, MACHINE.concurrency], ["learner", "engine full"], fontsize=7)
    axes.set_title(f"{name}: {outcome.seconds:.0f} s, engine {outcome.busy:.0%} busy", fontsize=9, loc="left")


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "docs" / "pictures" / "async.png"
    figure, rows = plt.subplots(len(MODES), 1, figsize=(8, 6), sharex=True, layout="constrained")
    with tempfile.TemporaryDirectory() as folder:
        build_tokenizer().save_pretrained(folder)
        outcomes = {}
        for mode, bound in MODES.items():
            staleness = {"mode": mode, "max_staleness": bound, "allow_uncorrected": True}
            shape = {"steps": 6, "groups_per_step": 16, "group_size": 4}
            outcomes[mode] = simulate(Workload(), MACHINE, model=Path(folder), **shape, staleness=staleness)
    until = max(outcome.seconds for outcome in outcomes.values())
    for axes, (mode, outcome) in zip(rows, outcomes.items(), strict=True):
        draw(axes, mode, outcome, until)
    rows[-1].set_xlabel("seconds", fontsize=8)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
