"""Draws chain_plain.json and chain_slow.json: rewards over time, and when the run was busy with what.

python benchmarks/plot_chain_runs.py [--out recipes/chain/runs.png]
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import matplotlib
import results_file

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_COLOURS = {"synchronous": "tab:grey", "asynchronous": "tab:blue"}
_STAGES = {"train": "tab:orange", "publish": "tab:red", "eval": "lightgrey"}


def draw_rewards(axes: Any, result: dict[str, Any], title: str) -> None:
    for name, colour in _COLOURS.items():
        run = result[name]
        seconds = list(itertools.accumulate(run["curves"]["time/step"]))
        rewards = run["curves"]["reward/mean"]
        axes.plot(seconds, rewards, color=colour, label=f"{name}, {run['steps_per_second']:.2f} steps/s")
        held_out = run["held_out_reward_before"], run["held_out_reward_after"]
        axes.plot([0, seconds[-1]], held_out, "o", color=colour, markersize=4)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("reward (dots: held out)")
    axes.legend(fontsize=7)


def draw_timeline(axes: Any, run: dict[str, Any], title: str, seconds: float) -> None:
    """`seconds` from the first step on: episodes in flight, and the stages below them."""
    timeline = run["timeline"]
    width = timeline["bin_seconds"]
    start = next(begin for name, step, begin, _ in timeline["stages"] if name == "rollout")
    places = range(int(start / width), int((start + seconds) / width))
    flight = [timeline["in_flight"][place] if place < len(timeline["in_flight"]) else 0 for place in places]
    top = max(timeline["in_flight"])
    axes.fill_between([place * width - start for place in places], flight, step="post", color="tab:blue", alpha=0.4)
    for name, colour in _STAGES.items():
        spans = [(begin - start, end - begin) for stage, _, begin, end in timeline["stages"] if stage == name]
        axes.broken_barh(spans, (-0.18 * top, 0.12 * top), color=colour, label=name)
    axes.set_xlim(0, seconds)
    axes.set_ylim(-0.22 * top, 1.05 * top)
    axes.set_title(title, fontsize=9)
    axes.set_ylabel("episodes in flight", fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "recipes" / "chain" / "runs.png")
    parser.add_argument("--seconds", type=float, default=40.0, help="of the timelines")
    args = parser.parse_args()
    found = {}
    for name in ("plain", "slow"):
        found[name] = json.loads((results_file.RESULTS / f"chain_{name}.json").read_text())["result"]
    figure, axes = plt.subplots(2, 2, figsize=(10, 5.6), height_ratios=(3, 2))
    draw_rewards(axes[0][0], found["plain"], "tools as they are")
    draw_rewards(axes[0][1], found["slow"], "slow tools")
    for place, name in enumerate(_COLOURS):
        draw_timeline(axes[1][place], found["slow"][name], f"{name}, slow tools", args.seconds)
    axes[1][1].legend(fontsize=7, loc="upper right")
    axes[1][0].set_xlabel("seconds")
    axes[1][1].set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(args.out, dpi=80)
    print(args.out)


if __name__ == "__main__":
    main()
