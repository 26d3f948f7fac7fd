"""Agent programs as episodes: functions and commands, in a rollout worker beside other environments."""

import asyncio
import json
import os
import re
import sys
import threading

import openai
import pytest

from agentloop import AgentLoop, Limits, StopReason
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.agent.program import AgentProgram, AgentResult
from agentloop.envs.rewards import load_reward
from agentloop.envs.tool_env import ToolEnv
from agentloop.episodes.worker import RolloutWorker
from agentloop.errors import EngineError, UserError
from agentloop.types.requests import RolloutRequest
from tests.support.programs_on_ray import HELLO, ROW, programs_on_ray
from tests.support.warm import warm_ray

pytestmark = pytest.mark.slow


@pytest.fixture
def play(renderer, ids_of):
    """Run an episode of an agent in this process; the model always says hello."""

    def run(agent=None, engine=None, limits=None, **options):
        loop = AgentLoop(engine or ScriptedEngine([ids_of(HELLO)]), renderer, limits=Limits(**(limits or {})))
        env = AgentProgram(ROW, agent=agent, **options)
        return asyncio.run(loop.run(env, trajectory_id="g-0", group_id="g", seed=3))

    return run


@pytest.fixture(scope="module")
def ray_play(tmp_path_factory):
    """`play` on Ray workers; episodes travel to them in a file."""
    with warm_ray(), programs_on_ray(tmp_path_factory.mktemp("episodes")) as on_ray:
        yield on_ray


@pytest.fixture(params=["local", "ray"])
def play_anywhere(request, play):
    """`play`, in this process and on Ray workers."""
    return play if request.param == "local" else request.getfixturevalue("ray_play")


async def say(model, text="2 + 3?", **options):
    async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
        answer = await client.chat.completions.create(
            model=model.model, messages=[{"role": "user", "content": text}], **options
        )
        return answer.choices[0].message.content


def test_the_answer_is_judged_and_every_stream_has_the_reward(play_anywhere):
    async def agent(task, model):
        assert task["answer"] == "5"
        assert await asyncio.gather(say(model, "a"), say(model, "b"), say(model, "c")) == ["hello"] * 3
        return "5"

    trajectory = play_anywhere(agent, reward=load_reward("exact"))
    assert (trajectory.trajectory_id, trajectory.group_id, trajectory.reward) == ("g-0", "g", 1.0)
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert trajectory.final_text == "5"
    assert [branch.trajectory_id for branch in trajectory.branches] == ["g-0.1", "g-0.2"]
    for branch in trajectory.branches:
        assert (branch.reward, branch.group_id, branch.task["answer"]) == (1.0, "g", "5")
        assert branch.stop_reason is StopReason.COMPLETED
    assert (trajectory.metrics["turns"], trajectory.metrics["branches"]) == (3, 2)
    assert trajectory.metrics["seconds"] > 0
    assert trajectory.failures == {}


@pytest.mark.parametrize(("found", "reward"), [(0.25, 0.25), (AgentResult("x", 2), 2.0), (True, 1.0)])
def test_an_agent_may_score_itself(play_anywhere, found, reward):
    async def agent(task, model):
        await say(model)
        return found

    assert play_anywhere(agent).reward == reward


def test_a_reward_function_may_give_branches_their_own(play_anywhere):
    def reward(trajectory, task):
        for number, branch in enumerate(trajectory.branches):
            branch.reward = 0.5 * number
        return 1.0

    from agentloop.envs.rewards import RewardFunction

    async def agent(task, model):
        for text in "abc":
            await say(model, text)

    trajectory = play_anywhere(agent, reward=RewardFunction(reward, name="mine"))
    assert trajectory.final_text == "hello"
    assert [trajectory.reward, *(branch.reward for branch in trajectory.branches)] == [1.0, 0.0, 0.5]


def test_a_plain_function_runs_in_a_thread(play_anywhere):
    def agent(task, model):
        assert threading.current_thread() is not threading.main_thread()
        client = openai.OpenAI(base_url=model.base_url, api_key=model.api_key)
        answer = client.chat.completions.create(model="m", messages=task["messages"])
        return float(answer.choices[0].message.content == "hello")

    assert play_anywhere(agent).reward == 1.0


COMMAND = """
import json, os, sys
from openai import OpenAI
task = json.load(sys.stdin)
client = OpenAI()
said = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=task["messages"])
print(said.choices[0].message.content, task["answer"])
if len(sys.argv) > 1:
    json.dump(json.loads(sys.argv[1]), open(os.environ["AGENTLOOP_RESULT"], "w"))
"""


def test_a_command_gets_its_task_and_answers_on_stdout(play_anywhere):
    trajectory = play_anywhere(command=[sys.executable, "-c", COMMAND], reward=load_reward("exact"))
    assert trajectory.error is None
    assert (trajectory.final_text, trajectory.num_turns) == ("hello 5", 1)
    assert trajectory.reward == 0.0


def test_a_command_may_write_its_result(play_anywhere):
    trajectory = play_anywhere(command=[sys.executable, "-c", COMMAND, '{"reward": 0.5, "answer": "six"}'])
    assert (trajectory.reward, trajectory.final_text) == (0.5, "six")


WRITE = "import os; open(os.environ['AGENTLOOP_RESULT'], 'w').write('{}')"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit('no luck')", r"ended with status 1: no luck"),
        ("import os; open(os.environ['AGENTLOOP_RESULT'], 'w').write('5')", "did not write a JSON object"),
        (WRITE.format('{"rewards": 1}'), "has no field 'rewards'. Did you mean 'reward'?"),
        (WRITE.format('{"answer": 5}'), "`answer` in AGENTLOOP_RESULT must be a text, got 5"),
        (WRITE.format('{"reward": [1]}'), r"`reward` in AGENTLOOP_RESULT must be a number, got \[1\]"),
    ],
)
def test_a_command_that_fails_ends_its_episode(play_anywhere, code, says):
    import re

    trajectory = play_anywhere(command=[sys.executable, "-c", code])
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert re.search(says, trajectory.error)
    assert (trajectory.failures, trajectory.reward) == ({"env": 1}, None)


async def test_a_command_is_killed_with_its_children_when_its_episode_is_cancelled(renderer, tmp_path):
    pids = tmp_path / "pids"
    code = f"sleep 1000 & echo $! > {pids}.part; echo $$ >> {pids}.part; mv {pids}.part {pids}; wait"
    env = AgentProgram(ROW, command=["sh", "-c", code])
    episode = asyncio.create_task(AgentLoop(ScriptedEngine([[0]]), renderer).run(env, trajectory_id="t"))
    while not pids.exists():  # noqa: ASYNC110 (another process writes it)
        await asyncio.sleep(0.01)
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    for pid in map(int, pids.read_text().split()):
        while _runs(pid):  # noqa: ASYNC110 (a kill takes a moment to arrive)
            await asyncio.sleep(0.01)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_command_that_does_not_exist_stops_the_run(play_anywhere):
    with pytest.raises(UserError, match="'/no/such/agent x', cannot be started: No such file"):
        play_anywhere(command=["/no/such/agent", "x"])


def test_a_plain_function_may_raise_stop_iteration(play):
    trajectory = play(lambda task, model: next(iter([])), limits={"max_seconds": 20})
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert "StopIteration" in trajectory.error


def test_an_agent_that_raises_is_a_failure_of_the_environment(play_anywhere):
    async def agent(task, model):
        await say(model)
        raise ZeroDivisionError("oops")

    trajectory = play_anywhere(agent, reward=load_reward("exact"))
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    place = r"(test_program.py|<dynamic-code>), line \d+"  # cloudpickle 3.1.3 sends functions without their file
    assert re.fullmatch(rf"the agent raised ZeroDivisionError: oops \({place}\)", trajectory.error)
    assert (trajectory.failures, trajectory.reward, trajectory.num_turns) == ({"env": 1}, None, 1)


@pytest.mark.parametrize(("limits", "reason", "reward", "failures"), [
    ({"max_turns": 2}, StopReason.MAX_TURNS, 0.0, {}),
    ({"max_tokens": 20}, StopReason.PROMPT_TOO_LONG, None, {"env": 1}),
])  # fmt: skip
def test_an_agent_that_ends_at_a_limit_fails_only_without_a_sampled_token(
    play_anywhere, limits, reason, reward, failures
):
    async def agent(task, model):
        while True:
            await say(model, "2 + 3 " * 3)

    trajectory = play_anywhere(agent, limits=limits, reward=load_reward("exact"))
    assert (trajectory.stop_reason, trajectory.reward, trajectory.failures) == (reason, reward, failures)


def test_an_agent_that_never_calls_the_model_is_not_judged(play_anywhere):
    async def agent(task, model):
        return AgentResult("5", 1.0)

    trajectory = play_anywhere(agent, reward=load_reward("exact"))
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.COMPLETED, None)
    assert trajectory.failures == {"env": 1}
    assert "before a token was sampled" in trajectory.error


def test_an_agent_that_handles_its_limit_completes(play_anywhere):
    async def agent(task, model):
        try:
            while True:
                await say(model)
        except openai.BadRequestError as error:
            return AgentResult(error.code, 0.5)

    trajectory = play_anywhere(agent, limits={"max_turns": 2})
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.COMPLETED, "max_turns")
    assert trajectory.reward == 0.5


def test_time_ends_an_agent(play):
    ended = []

    async def agent(task, model):
        await say(model)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    trajectory = play(agent, limits={"max_seconds": 0.5}, reward=load_reward("exact"))
    assert ended == [True]
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.MAX_SECONDS, 0.0)


@pytest.mark.parametrize("waits", [False, True])
def test_the_error_of_a_long_prompt_has_its_length(play, waits):
    async def agent(task, model):
        try:
            await say(model, "2 + 3 " * 30)
        except openai.BadRequestError:
            if not waits:
                raise
            await asyncio.Event().wait()

    trajectory = play(agent, limits={"max_tokens": 20, "max_seconds": 2})
    assert (trajectory.stop_reason, trajectory.failures) == (StopReason.PROMPT_TOO_LONG, {"env": 1})
    assert re.fullmatch(
        r"The prompt has \d{2,3} tokens; the episode's limit for prompt and answer is 20", trajectory.error
    )


def test_a_timeout_of_the_agents_own_is_its_own(play_anywhere):
    async def agent(task, model):
        raise TimeoutError("the shop is closed")

    trajectory = play_anywhere(agent)
    assert (trajectory.stop_reason, trajectory.failures) == (StopReason.ENV_ERROR, {"env": 1})


def test_a_failed_engine_ends_the_episode_even_if_the_agent_answers(play):
    class Broken(ScriptedEngine):
        async def generate(self, prompt, params, *, trajectory_id, images=()):
            raise EngineError("out of memory")

    async def agent(task, model):
        with pytest.raises(openai.InternalServerError):
            await say(model)
        return 1.0

    trajectory = play(agent, engine=Broken([[0]]))
    assert trajectory.stop_reason is StopReason.ENGINE_ERROR
    assert (trajectory.failures, trajectory.error, trajectory.reward) == ({"engine": 1}, "out of memory", None)


def test_without_any_reward_there_is_none(play_anywhere):
    async def agent(task, model):
        await say(model)
        return "5"

    trajectory = play_anywhere(agent)
    assert (trajectory.reward, trajectory.failures) == (None, {"judge": 1})


@pytest.mark.parametrize(
    ("returned", "says"), [([1], "the agent returned list"), (float("nan"), "not finite"), ({}, "returned dict")]
)
def test_invalid_results_are_errors(play_anywhere, returned, says):
    async def agent(task, model):
        return returned

    assert says in play_anywhere(agent).error


def test_the_engine_forgets_all_streams(renderer, ids_of):
    class Counting(ScriptedEngine):
        def __init__(self):
            super().__init__([ids_of(HELLO)])
            self.known = set()

        async def generate(self, prompt, params, *, trajectory_id, images=()):
            self.known.add(trajectory_id)
            return await super().generate(prompt, params, trajectory_id=trajectory_id)

        def release(self, trajectory_id):
            self.known.discard(trajectory_id)

    async def agent(task, model):
        await asyncio.gather(*(say(model, text) for text in "abc"))
        return 1.0

    engine = Counting()
    asyncio.run(AgentLoop(engine, renderer).run(AgentProgram(ROW, agent=agent), trajectory_id="t"))
    assert engine.known == set()


def test_agents_and_other_environments_side_by_side(renderer, ids_of):
    async def agent(task, model):
        return float(await say(model) == "hello")

    async def run():
        def make_env(request):
            if request.group_id == "agents":
                return AgentProgram(ROW, agent=agent)
            return ToolEnv(ROW, reward=load_reward("exact"))

        worker = RolloutWorker(AgentLoop(ScriptedEngine([ids_of(HELLO)]), renderer), make_env, max_concurrency=16)
        requests = [RolloutRequest(group_id=name, row=0, n=8, seed=0) for name in ("agents", "tools")]
        agents, tools = await asyncio.gather(*map(worker.play, requests))
        assert [t.reward for t in agents.trajectories] == [1.0] * 8
        assert [t.trajectory_id for t in agents.trajectories] == [f"agents-{k}" for k in range(8)]
        assert [t.reward for t in tools.trajectories] == [0.0] * 8
        assert len(asyncio.all_tasks()) == 1  # nothing is left running

    asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "Name the agent"),
        ({"agent": print, "command": ["x"]}, "Name the agent"),
        ({"agent": "no_such_module:solve"}, "no module 'no_such_module'"),
        ({"agent": print, "sampling": "mine"}, "'run' or 'client'"),
        ({"agent": print, "check": ["true"]}, "belong to a `harness`"),
        ({"harness": "none"}, "'none' is not a harness. Choose one of claude-code, codex"),
        (
            {"harness": "codex", "program": "/no/codex"},
            "needs the program '/no/codex', which does not exist",
        ),
    ],
)
def test_bad_options_are_explained(options, says):
    with pytest.raises(UserError, match=says):
        AgentProgram(ROW, **options)


def test_an_address_that_cannot_be_listened_on_stops_the_run(play):
    with pytest.raises(UserError, match=r"cannot listen on 203\.0\.113\.7"):
        play(lambda task, model: 1.0, host="203.0.113.7")


def test_the_environment_of_a_command_is_that_of_the_run(play, monkeypatch):
    monkeypatch.setenv("AGENT_SETTING", "kept")
    trajectory = play(command=["sh", "-c", "echo $AGENT_SETTING $OPENAI_BASE_URL"], reward=load_reward("exact"))
    kept, url = trajectory.answer.split()
    assert kept == "kept"
    assert url.startswith("http://127.0.0.1:")
    assert "OPENAI_BASE_URL" not in os.environ
    assert json.dumps(trajectory.task)
