import random
import sys
from functools import partial
from pathlib import Path

import pytest

from agentloop import play_script
from agentloop.envs.gem.env import Gem
from agentloop.envs.nemo_gym.env import NemoGym
from agentloop.envs.reasoning_gym.env import ReasoningGym
from agentloop.envs.textarena.env import TextArena
from agentloop.envs.verifiers.env import Verifiers
from agentloop.envs.workers.env import WorkerEnv
from agentloop.errors import UserError

pytestmark = pytest.mark.slow


class Counting(WorkerEnv):
    """A game in which the model says the next number; `game.py` beside the test is its package."""

    package = "counting"

    def __init__(self, row, **parts):
        super().__init__(row, python=sys.executable, **parts)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"processes": 0}, "`processes` of .* must be at least 1, got 0"),
        ({"step_timeout": 0}, "`step_timeout` of .* must be above 0, got 0"),
        ({"step_timeout": float("nan")}, "must be above 0, got nan"),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        partial(ReasoningGym, {"source": {}}),
        partial(TextArena, {"game": "Nim-v0", "seed": 1}),
        partial(NemoGym, {"environment": {}, "item": {}}),
        partial(Verifiers, {"environment": {}}),
        partial(Gem, {"env": "game:Sokoban-v0-easy", "seed": 1}),
    ],
)
def test_limits_that_allow_nothing_are_refused(make, options, says):
    with pytest.raises(UserError, match=says):
        make(**options)


@pytest.fixture
def game(tmp_path):
    def written(body):
        file = tmp_path / f"game{random.randrange(10**9)}.py"
        file.write_text("import os\nclass Worker:\n" + body)
        return type("Game", (Counting,), {"worker": Path(file)})

    return written


RIGHT = """
    def start(self, episode, arguments):
        self.next = arguments['first']
        return {'messages': 'Count.'}
    def step(self, episode, arguments):
        is_right = arguments['message']['content'] == str(self.next)
        self.next += 1
        if not is_right:
            return {'reward': 0.0, 'terminated': True}
        return {'messages': [{'role': 'user', 'content': 'Go on.'}], 'reward': 1.0, 'metrics': {'right': 1}}
"""


def test_a_game_of_a_worker_is_played_to_its_end(game):
    trajectory = play_script(game(RIGHT)({"first": 3}), ["3", "4", "9"])
    assert (trajectory.stop_reason, trajectory.reward, trajectory.metrics["right"]) == ("completed", 2.0, 2)
    said = [message["content"] for message in trajectory.messages]
    assert said == ["Count.", "3", "Go on.", "4", "Go on.", "9"]


@pytest.mark.parametrize(
    ("body", "kind", "reason", "error"),
    [
        ("    def start(self, e, a): os._exit(7)\n", "env", "env_error", "it exited with code 7"),
        (
            "    def start(self, e, a): return {'messages': 'Go.'}\n    def step(self, e, a): os._exit(7)\n",
            "env",
            "env_error",
            "it exited with code 7",
        ),
        ("    def start(self, e, a): return 5\n", "env", "env_error", "answered with int instead of an object"),
        (
            "    def start(self, e, a): return {'messages': 'Go.'}\n"
            "    def step(self, e, a): return {'terminated': True}\n",
            "judge",
            "completed",
            "gave no reward for any step",
        ),
        (
            "    def start(self, e, a): return {'messages': 'Go.'}\n"
            "    def step(self, e, a): return {'reward': float('nan'), 'terminated': True}\n",
            "env",
            "env_error",
            "nan",
        ),
    ],
)
def test_what_cannot_be_judged_is_a_counted_failure_without_a_reward(game, body, kind, reason, error):
    trajectory = play_script(game(body)({}), ["1"])
    assert (trajectory.stop_reason, trajectory.reward, trajectory.failures) == (reason, None, {kind: 1})
    assert error in trajectory.error
