"""Values of a wrong type, from an environment or its reward, end the run and name the method that returned them."""

import asyncio

import numpy as np
import pytest

from agentloop import AgentLoop, Env, Limits, Observation, StopReason, tool
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.rewards import RewardFunction
from agentloop.episodes.worker import RolloutWorker
from agentloop.errors import EnvError, WrongTypeError
from agentloop.types.requests import RolloutRequest

END = "<|im_end|>"
HELLO = Observation([{"role": "user", "content": "Hello"}])
STEP = (Observation(), 0.0, True, False)


class Talk(Env):
    """Returns what it is made with."""

    def __init__(self, reset=HELLO, step=STEP, score=1.0):
        self.returns = {"reset": reset, "step": step, "score": score}
        self.finish_reasons = []

    async def reset(self):
        return self.returns["reset"]

    async def step(self, message):
        self.finish_reasons.append(message["finish_reason"])
        return self.returns["step"]

    async def score(self, trajectory):
        return self.returns["score"]


@pytest.fixture
def play(renderer, ids_of):
    def run(env, *turns, **limits):
        loop = AgentLoop(
            ScriptedEngine([ids_of(turn) for turn in turns or ["5" + END]]), renderer, limits=Limits(**limits)
        )
        return asyncio.run(loop.run(env))

    return run


WRONG = [
    ("reset", None, "returned None as the observation. Return Observation([{'role': 'user'"),
    ("reset", "Hello", "returned str 'Hello' as the observation"),
    ("reset", [{"role": "user", "content": "Hello"}], "returned list [{"),
    ("reset", (HELLO, {}), "returned a tuple of 2 values, as in gymnasium. Return the Observation alone."),
    ("reset", Observation("Hello"), "returned an Observation of str 'Hello', not of a list"),
    ("reset", Observation({"role": "user", "content": "Hello"}), "returned an Observation of dict"),
    ("reset", Observation(["Hello"]), "returned str 'Hello' as message 1 of its Observation"),
    ("reset", Observation([{"role": "usr", "content": "Hello"}]), "a role (system, user, assistant, tool)"),
    ("reset", Observation([{"role": "user"}]), "and a content"),
    ("step", None, "returned None. Return 4 values: (Observation, reward, terminated, truncated)"),
    ("step", (*STEP, {}), "returned 5 values, as in gymnasium. Return 4, without the info"),
    ("step", (None, *STEP[1:]), "returned None as the observation"),
    ("step", (Observation(), "1", True, False), "returned str '1' as the reward: it must be a number."),
    ("step", (Observation(), 0.0, "False", False), "returned str 'False' as terminated: it must be True or False"),
    ("step", (Observation(), 0.0, True, {}), "returned dict {} as truncated"),
    ("score", None, "returned None as the reward: it must be a number. Does every path through it return a reward?"),
    ("score", "good", "returned str 'good' as the reward"),
    ("score", (1.0, {}), "returned tuple (1.0, {}) as the reward"),
    ("score", [1.0], "returned list [1.0] as the reward"),
]


@pytest.mark.parametrize(("method", "value", "words"), WRONG)
def test_a_wrong_type_names_the_method_and_what_it_returned(play, method, value, words):
    with pytest.raises(WrongTypeError) as caught:
        play(Talk(**{method: value}))
    assert str(caught.value).startswith(f"Talk.{method} (test_wrong_types.py, line ")
    assert words in str(caught.value)


def test_numbers_of_numpy_are_numbers(play):
    env = Talk(step=(Observation(), np.float32(0.5), np.bool_(True), np.array(False)), score=np.int64(1))
    assert play(env).reward == 1.5


def test_a_reward_of_a_wrong_type_names_the_function(play):
    def judge(trajectory, task):
        return [1.0]

    env = Talk()
    env.score = lambda trajectory: RewardFunction(judge, name="mine")(trajectory, {})
    with pytest.raises(WrongTypeError, match=r"^judge \(test_wrong_types.py, line \d+\) returned list \[1.0\] as"):
        play(env)


def test_a_task_and_a_toolset_of_a_wrong_type_are_named(play):
    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    env = Talk()
    env.task = ["row"]
    with pytest.raises(WrongTypeError, match=r"Talk.task is list \['row'\]. It must be the row, a dict"):
        play(env)

    class Late(Talk):
        async def reset(self):
            self.toolset = [add]
            return HELLO

    with pytest.raises(WrongTypeError, match=r"Late.toolset is list .* Set it to a Toolset"):
        play(Late())


def test_the_first_wrong_type_ends_the_run(renderer, ids_of):
    loop = AgentLoop(ScriptedEngine([ids_of("5" + END)]), renderer)
    worker = RolloutWorker(loop, lambda request: Talk(step=(*STEP, {})))
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(worker.play(RolloutRequest(group_id="g", row=0, n=4, seed=0)))
    assert {type(error) for error in caught.value.exceptions} == {WrongTypeError}


def test_the_message_of_an_env_error_is_unchanged(play):
    class Broken(Talk):
        async def step(self, message):
            raise EnvError("The board is gone.")

    trajectory = play(Broken())
    assert (trajectory.stop_reason, trajectory.error) == (StopReason.ENV_ERROR, "The board is gone.")


def test_a_cut_turn_ends_the_episode_without_a_step(play):
    env = Talk()
    assert play(env, "one two three" + END, max_turn_tokens=2).stop_reason is StopReason.MAX_TURN_TOKENS
    assert env.finish_reasons == []


def test_an_environment_may_take_cut_turns(play):
    class Patient(Talk):
        takes_cut_turns = True

        async def step(self, message):
            await super().step(message)
            return HELLO, 0.25, message["finish_reason"] == "stop", False

    env = Patient()
    trajectory = play(env, "one two three" + END, "5" + END, max_turn_tokens=2)
    assert env.finish_reasons == ["length", "stop"]
    assert (trajectory.stop_reason, trajectory.turn_rewards) == (StopReason.COMPLETED, [0.25, 0.25])
    assert "finish_reason" not in trajectory.messages[1]
    second_turn = [*trajectory.sampled_segments()][1].start
    full = play(Patient(), "one two three" + END, max_turn_tokens=2, max_tokens=second_turn)
    assert full.stop_reason is StopReason.MAX_TOKENS
    assert full.turn_rewards == [0.25]
