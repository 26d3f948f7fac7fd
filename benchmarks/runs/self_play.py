"""Train the tiny run of the recipe self_play with several seeds, and count its optimal moves on held-out games.

    python -m benchmarks.runs.self_play [--seeds 0 1 2] [--set KEY=VALUE ...]

Nim is solved: a move is optimal if the nim-sum after it is 0, and such a move exists in every position with another
nim-sum. The share is that of the model's moves, at temperature 1, in those positions of the last evaluation: its
opponent is drawn for each game, a perfect player or a random one, and the model begins every other game.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import agentloop
from agentloop.api.recipe import load_run_config
from agentloop.recipes.self_play.games import nim_move, nim_piles, optimal_nim_moves
from agentloop.types.messages import text_of
from agentloop.types.trajectory import Trajectory
from benchmarks import results_file

TINY = Path(__file__).parents[2] / "recipes" / "self_play" / "tiny.yaml"


def optimal_share(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    chances = optimal = 0
    for trajectory in trajectories:
        for asked, said in zip(trajectory.messages, trajectory.messages[1:], strict=False):
            if said["role"] == "assistant" and (best := optimal_nim_moves(nim_piles(text_of(asked["content"])))):
                chances += 1
                optimal += nim_move(text_of(said["content"])) in best
    return {"positions": chances, "optimal": optimal / chances}


def measure(seed: int, settings: list[str]) -> dict[str, Any]:
    started, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        own = [f"run.folder={folder}/run", f"run.seed={seed}", "run.loggers=[]", "run.save_trajectories=128"]
        run = agentloop.train(load_run_config(str(TINY), [*own, *settings]), progress=False)
        evaluations = sorted(run.folder.glob("trajectories/eval_*"))
        metrics = run.metrics
        result = {
            "seed": seed,
            "steps": int(evaluations[-1].name[5:11]),
            "before": optimal_share(agentloop.read_trajectories(evaluations[0])),
            "after": optimal_share(agentloop.read_trajectories(evaluations[-1])),
            "by_evaluation": [optimal_share(agentloop.read_trajectories(each))["optimal"] for each in evaluations],
            "held_out_reward_after": metrics[-1]["eval/reward/mean"],
            "seconds": time.perf_counter() - started,
            "processor_seconds": time.process_time() - cpu,
        }
        print(result, flush=True)
        return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[])
    arguments = parser.parse_args()
    runs = [measure(seed, arguments.set) for seed in arguments.seeds]
    print(results_file.write("self_play_nim", {"runs": runs}).read_text())


if __name__ == "__main__":
    main()
