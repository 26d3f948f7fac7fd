"""Train the tiny runs of the recipe self_play with several seeds, and measure how well they play on held-out games.

    python -m benchmarks.runs.self_play nim | pennies | tictactoe [--seeds 0 1 2] [--set KEY=VALUE ...]
    python -m benchmarks.runs.self_play nim | pennies | tictactoe --runs FOLDER ...

The second form measures runs of `agentloop train` with `run.save_trajectories=200`.

nim: Nim is solved. A move is optimal if the nim-sum after it is 0; each position with another nim-sum has such a move.
The share is over the model's moves, at temperature 1, in the positions of an evaluation that have an optimal move. Its
opponent is drawn for each game, a perfect player or a random one, and the model begins every other game. At the end the
probability of an optimal move is computed in all 102 positions that have one, by the number of their piles, and the
share of these positions in which the most likely valid move is optimal.

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
from agentloop.recipes.self_play.games import nim_board, nim_move, nim_moves, nim_piles, optimal_nim_moves, penny
from agentloop.recipes.self_play.tiny_task import POSITIONS
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


def nim_everywhere(model: Path) -> dict[str, float]:
    """Return the mean probability of optimal moves over all positions that have one, and by the number of piles."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy, tokenizer = (
        AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
        AutoTokenizer.from_pretrained(model),
    )
    by_piles: dict[int, list[float]] = {1: [], 2: [], 3: []}
    is_most_likely: list[bool] = []
    for piles in POSITIONS:
        moves, best = nim_moves(piles), set(optimal_nim_moves(piles))
        if not best:
            continue
        board = [{"role": "user", "content": nim_board(piles)}]
        prompt = tokenizer.apply_chat_template(board, add_generation_prompt=True, return_dict=False)
        turns = [[*tokenizer("{} {}".format(*move)).input_ids, tokenizer.eos_token_id] for move in moves]
        ids, targets = torch.tensor([prompt + turn for turn in turns]), torch.tensor(turns)
        with torch.no_grad():
            logprobs = policy(ids).logits[:, len(prompt) - 1 : -1].log_softmax(-1)
        chances = logprobs.gather(-1, targets[..., None]).sum((1, 2)).exp().tolist()
        by_piles[sum(map(bool, piles))].append(sum(p for p, move in zip(chances, moves, strict=True) if move in best))
        is_most_likely.append(moves[int(np.argmax(chances))] in best)
    found = {
        "all": np.mean([chance for values in by_piles.values() for chance in values]),
        "most_likely": np.mean(is_most_likely),
    }
    found |= {f"piles_{number}": np.mean(values) for number, values in by_piles.items()}
    return {name: round(float(value), 4) for name, value in found.items()}


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


def figures(name: str, run: agentloop.RunResult) -> dict[str, Any]:
    """Return what was measured at each evaluation of a run, and the seconds of its steps."""
    evaluations = sorted(run.folder.glob("trajectories/eval_*"))
    found: dict[str, Any] = {
        "by_step": {int(each.name[5:11]): GAMES[name][1](agentloop.read_trajectories(each)) for each in evaluations},
        "seconds": round(sum(step.get("time/step", 0.0) for step in run.metrics), 1),
    }
    if name == "nim":
        found["everywhere"] = nim_everywhere(run.model)
    return found


def measure(name: str, seed: int, settings: list[str]) -> dict[str, Any]:
    """Train with one seed, and return what was measured."""
    cpu = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        own = [f"run.folder={folder}/run", f"run.seed={seed}", "run.loggers=[]", "run.save_trajectories=200"]
        run = agentloop.train(load_run_config(str(RECIPE / GAMES[name][0]), [*own, *settings]), progress=False)
        processor_seconds = round(time.process_time() - cpu, 1)
        return {"seed": seed, "processor_seconds": processor_seconds} | figures(name, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=GAMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--runs", type=Path, nargs="+", help="measure these run folders instead of training")
    given = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for run in given.runs or given.seeds:
        if isinstance(run, Path):
            found = agentloop.load_run(run)
            runs.append({"seed": found.config.run.seed} | figures(given.name, found))
        else:
            runs.append(measure(given.name, run, given.set))
        print(runs[-1], flush=True)
        results_file.write(f"self_play_{given.name}", {"runs": runs})


if __name__ == "__main__":
    main()
