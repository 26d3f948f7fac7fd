"""Train the tiny runs of the recipe self_play with several seeds, and measure how well they play on held-out games.

    python -m benchmarks.runs.self_play nim | pennies | tictactoe [--seeds 0 1 2] [--set KEY=VALUE ...]

nim: Nim is solved. A move is optimal if the nim-sum after it is 0; each position with another nim-sum has such a move.
The share is over the model's moves, at temperature 1, in the positions of an evaluation that have an optimal move. Its
opponent is drawn for each game, a perfect player or a random one, and the model begins every other game.

pennies: the probability of heads in each seat at each evaluation, from the log-probabilities of the sampled tokens.

tictactoe: how many of 200 games the model won, drew and lost as the second player against random moves, at temperature
0. An invalid move is a lost game.

Writes results/self_play_NAME.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import agentloop
from agentloop.api.recipe import load_run_config
from agentloop.recipes.self_play.games import nim_move, nim_piles, optimal_nim_moves, penny
from agentloop.types.messages import text_of
from agentloop.types.trajectory import Trajectory
from benchmarks import results_file

RECIPE = Path(__file__).parents[2] / "recipes" / "self_play"


def optimal_share(episodes: Iterable[Trajectory]) -> dict[str, float]:
    """Return the share of optimal moves in positions that have one, and the number of these positions."""
    chances = optimal = 0
    for stream in (stream for episode in episodes for stream in (episode, *episode.branches)):
        for board, turn in zip(stream.messages, stream.messages[1:], strict=False):
            if turn["role"] == "assistant" and (best := optimal_nim_moves(nim_piles(text_of(board["content"])))):
                chances += 1
                optimal += nim_move(text_of(turn["content"])) in best
    return {"optimal": round(optimal / chances, 4), "positions": chances}


def heads_by_seat(episodes: Iterable[Trajectory]) -> dict[str, float]:
    """Return the probability of heads in each seat. All turns of a seat have the same prompt, so one turn suffices."""
    found: dict[str, float] = {}
    for episode in episodes:
        probability = float(np.exp(np.asarray(episode.logprobs)[np.asarray(episode.loss_mask)].sum()))
        side = penny(episode.final_text)
        if side is not None:
            found[episode.role] = round(probability if side == "heads" else 1 - probability, 4)
    return found


def outcomes(episodes: Iterable[Trajectory]) -> dict[str, int]:
    """Return how many games the model won, drew and lost."""
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    return {
        "won": sum(reward > 0 for reward in rewards),
        "drawn": sum(reward == 0 for reward in rewards),
        "lost": sum(reward < 0 for reward in rewards),
    }


GAMES: dict[str, tuple[str, Callable[[Iterable[Trajectory]], Mapping[str, float]]]] = {
    "nim": ("tiny.yaml", optimal_share),
    "pennies": ("pennies.yaml", heads_by_seat),
    "tictactoe": ("tictactoe.yaml", outcomes),
}
"""Name -> its config, and what is measured in an evaluation."""


def measure(name: str, seed: int, settings: list[str]) -> dict[str, Any]:
    """Train with one seed, and return what was measured at each evaluation."""
    config, figures = GAMES[name]
    started, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        own = [f"run.folder={folder}/run", f"run.seed={seed}", "run.loggers=[]", "run.save_trajectories=200"]
        run = agentloop.train(load_run_config(str(RECIPE / config), [*own, *settings]), progress=False)
        evaluations = sorted(run.folder.glob("trajectories/eval_*"))
        result = {
            "seed": seed,
            "by_step": {int(each.name[5:11]): figures(agentloop.read_trajectories(each)) for each in evaluations},
            "seconds": round(time.perf_counter() - started, 1),
            "processor_seconds": round(time.process_time() - cpu, 1),
        }
    print(result, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=GAMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[])
    given = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for seed in given.seeds:
        runs.append(measure(given.name, seed, given.set))
        results_file.write(f"self_play_{given.name}", {"runs": runs})


if __name__ == "__main__":
    main()
