"""The library's own loop, in its own interpreter: plays all registered games, and prints what happened as JSON.

Moves are what the games' own texts suggest; the first that is not refused by a copy of the game is made.
"""

import contextlib
import copy
import json
import random
import re
import sys

import numpy
import textarena as ta
from textarena.envs.registration import ENV_REGISTRY

SEED = 11
MOST_TURNS = 30
PLAYERS = {"MarketEntryGame-v0": 4, "PublicGoodsGame-v0": 4, "QuantumTicTacToe-v0": 2, "SpiteAndMalice-v0": 2}
"""Where the game accepts fewer, with which it cannot be played."""
TAKES_HALF_A_MINUTE = {"Sokoban-v0-medium"}
COMMON = (
    *(f"[{first}{second}]" for first in "0123456" for second in ("", " 0", " 1", " 2", ",0", ",1", ",3")),
    "[up]", "[right]", "[down]", "[left]", "[heads]", "[rock]", "[cooperate]", "[bid 5]", "[roll]", "[hold]", "[check]",
    "[call]", "[fold]", "[pass]", "[accept]", "[e2e4]", "[e7e5]", "[g1f3]", "[play 1]", "[draw]", "[hit]", "[stand]",
    "[1 2 3 4]",
    "[A1]", "[B 2]", "[A5,B5,C10]", "[income]", "[0 0 1]", "[50]", "[high]", "[Accept]", "[Done]", "I offer peace.",
)  # fmt: skip


def begun(name):
    """A game with the smallest number of players that it takes."""
    refused = None
    for players in (PLAYERS[name],) if name in PLAYERS else range(1, 7):
        random.seed(SEED)
        numpy.random.seed(SEED)
        try:
            env = ta.make(f"{name}-raw" if f"{name}-raw" in ENV_REGISTRY else name)
            env.reset(num_players=players, seed=SEED)
        except (AssertionError, KeyError, IndexError, ValueError) as error:
            refused = error
        else:
            return env, players
    raise refused


def refuses(env, move):
    state = random.getstate(), numpy.random.get_state()
    try:
        with contextlib.redirect_stdout(None):
            attempt = copy.deepcopy(env)
            done, _ = attempt.step(action=move)
        info = attempt.close()[1] if done else {}
        return bool(getattr(attempt.state, "error_count", 0)) or any(each.get("invalid_move") for each in info.values())
    except Exception:
        return True
    finally:
        random.setstate(state[0])
        numpy.random.set_state(state[1])


def played(name):
    env, players = begun(name)
    choices, turns, known = random.Random(name), [], ""
    rewards, info = None, {}
    while len(turns) < MOST_TURNS:
        player, observation = env.get_observation()
        heard = [
            f"[{env.state.role_mapping.get(sender, f'Player {sender}') if sender >= 0 else 'GAME'}] {text}"
            for sender, text, kind in observation
            if not (sender == player and kind == ta.ObservationType.PLAYER_ACTION)
        ]
        known = "\n".join([known, *heard])[-6000:]
        suggested = sorted(set(re.findall(r"\[[^\[\]\n]{1,20}\]", known)))
        choices.shuffle(suggested)
        moves = [*suggested[:20], *choices.sample(COMMON, len(COMMON))]
        text = next((move for move in moves if not refuses(env, move)), moves[0])
        turns.append([player, heard, text])
        done, _ = env.step(action=text)
        if done:
            rewards, info = env.close()
            break
    invalid = [player for player in info if info[player].get("invalid_move")]
    return {"players": players, "turns": turns, "rewards": rewards, "invalid": invalid}


found = {"played": {}, "failed": {}}
for name in sorted(each for each in ENV_REGISTRY if not each.endswith(("-raw", "-train"))):
    if name in TAKES_HALF_A_MINUTE:
        continue
    try:
        found["played"][name] = played(name)
    except Exception as error:
        found["failed"][name] = f"{type(error).__name__}: {error}"
sys.stdout.write("\n" + json.dumps(found))
