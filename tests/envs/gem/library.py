"""The package's own step loop, in its own interpreter: plays its games and questions, and prints what happened as JSON.

Turns are random actions of the environments, and the answers of questions. Drawing them does not change the game.

python library.py FOLDER_OF_QUESTIONS
"""

import json
import os
import random
import sys

import gem
import numpy
from gem.envs.registration import ENV_REGISTRY

SEED = 11
MOST_TURNS = 12
ACTIONS = {"game:Sudoku": r"\boxed{1 1 1}", "game:TowerofHanoi": r"\boxed{A B}", "game:FifteenPuzzle": r"\boxed{up}"}
"""Where the package offers none."""

MAY_TAKE_MINUTES = {"game:Sokoban-v0-hard", "game:Sokoban-v0-random"}
"""They draw rooms until one can be solved."""


def turn_of(env, name):
    if name.startswith("rg:"):
        return f"So it is \\boxed{{{env.data['answer']}}}"
    if name.startswith("math:"):
        return f"It is \\boxed{{{env.answer}}}"
    if name.startswith(("qa:", "logic:")):
        return f"<think>Easy.</think> <answer>{env.answer[0]}</answer>"
    for start, action in ACTIONS.items():
        if name.startswith(start):
            return action
    state = random.getstate(), numpy.random.get_state()
    action = env.sample_random_action()
    random.setstate(state[0])
    numpy.random.set_state(state[1])
    return action


def played(name, options):
    random.seed(SEED)
    numpy.random.seed(SEED)
    env = gem.make(name, **options)
    observation, info = env.reset(seed=SEED)
    heard, said, rewards, ends = [[observation, info.get("suffix", "")]], [], [], (False, False)
    while not any(ends) and len(said) < MOST_TURNS:
        said.append(turn_of(env, name))
        observation, reward, *ends, info = env.step(said[-1])
        rewards.append(reward)
        heard.append([observation, info.get("suffix", "")])
    return {"options": options, "heard": heard, "said": said, "reward": float(sum(rewards)), "ends": ends}


questions = sys.argv[1]
several = sorted(name for name in ENV_REGISTRY if name.startswith("rg:") and name != "rg:composite")[::5]
all_games = (name for name in ENV_REGISTRY if name.startswith("game:") and name not in MAY_TAKE_MINUTES)
games = {name: {} for name in (*all_games, *several)}
data = {
    "math:GSM8K": {"dataset_name": questions, "question_key": "question", "answer_key": "answer", "use_mp": False},
    "qa:HotpotQA": {"dataset_name": questions, "question_key": "question", "answer_key": "answers"},
}
found = {"played": {}, "failed": {}}
for name, options in (games | data).items():
    try:
        found["played"][name] = played(name, options)
    except (Exception, SystemExit) as error:
        found["failed"][name] = f"{type(error).__name__}: {error}"
sys.stdout.write("\n" + json.dumps(found) + "\n")
sys.stdout.flush()
os._exit(0)
