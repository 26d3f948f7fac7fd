"""`AgentLoop`: what ends an episode, what the model gets to see, and what is learnt from."""

import asyncio
import contextlib
import json
import threading

import pytest

from agentloop import AgentLoop, Env, Limits, Observation, StopReason, Tool, ToolResult, tool
from agentloop.engines.base import SamplingParams
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.errors import EngineError, FailureKind, with_fix
from agentloop.process.threads import threaded
from agentloop.tools import time_limit
from agentloop.tools.toolset import Toolset
from agentloop.types.trajectory import SegmentKind
from agentloop.weights.tensors import TensorWeights

END = "<|im_end|>"


def call(name: str, **arguments) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


class Talk(Env):
    """One question; a turn without calls ends it unless `replies` are left."""

    def __init__(self, tools=(add,), replies=(), score=1.0):
        self.toolset = Toolset(tools) if tools else None
        self.task = {"question": "2 + 3?"}
        self.replies = list(replies)
        self.outcome = score
        self.closed = 0

    async def reset(self):
        return Observation([{"role": "user", "content": self.task["question"]}])

    async def step(self, message):
        if self.replies:
            return Observation([{"role": "user", "content": self.replies.pop(0)}]), 0.25, False, False
        return Observation(), 0.0, True, False

    async def score(self, trajectory):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def close(self):
        self.closed += 1


@pytest.fixture
def play(renderer, ids_of):
    """Run an episode in which the model says `turns`."""

    def run(turns, env=None, **limits):
        engine = ScriptedEngine([ids_of(turn) for turn in turns])
        loop = AgentLoop(engine, renderer, limits=Limits(**limits))
        return asyncio.run(loop.run(env or Talk(), trajectory_id="t", group_id="g", seed=7))

    return run


def tool_texts(trajectory):
    return [message["content"] for message in trajectory.messages if message["role"] == "tool"]


def test_a_tool_call_and_an_answer(play, tokenizer, ids_of):
    turns = [call("add", a=2, b=3) + END, "The answer is 5." + END]
    trajectory = play(turns)

    assert trajectory.stop_reason is StopReason.COMPLETED
    assert trajectory.reward == 1.0
    assert [segment.kind for segment in trajectory.segments] == [
        SegmentKind.PROMPT,
        SegmentKind.SAMPLED,
        SegmentKind.TEMPLATE,
        SegmentKind.OBSERVATION,
        SegmentKind.SAMPLED,
    ]
    ids = trajectory.token_ids
    sampled = [ids[s.start : s.end].tolist() for s in trajectory.sampled_segments()]
    assert sampled == [ids_of(turn) for turn in turns]
    assert trajectory.messages[2]["content"] == "5"
    # The stream is what the chat template renders of the same conversation, less the newline behind the last turn.
    messages = [trajectory.messages[0], *trajectory.messages[1:]]
    whole = tokenizer.apply_chat_template(messages, tools=Talk().toolset.schemas, tokenize=False)
    assert tokenizer.decode(ids) + "\n" == whole


def test_only_sampled_tokens_carry_loss(play):
    trajectory = play([call("add", a=2, b=3) + END, "5" + END])
    mask = trajectory.loss_mask
    assert mask.sum() == trajectory.num_sampled == sum(s.end - s.start for s in trajectory.sampled_segments())
    assert (trajectory.logprobs[~mask] == 0).all()
    assert (trajectory.versions[~mask] == -1).all()
    assert (trajectory.logprobs[mask] == -0.5).all()
    assert (trajectory.versions[mask] == 0).all()


def test_the_stream_ends_with_a_sampled_turn(play):
    trajectory = play([call("add", a=2, b=3) + END], max_turns=3)
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert trajectory.num_turns == 3
    assert trajectory.segments[-1].kind is SegmentKind.SAMPLED
    assert tool_texts(trajectory) == ["5", "5", "5"]  # the last turn's call ran, too


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("<tool_call>\n{not json}\n</tool_call>", "JSON"),
        (call("ad", a=1, b=2), "add"),
        (call("add", a=1), "b"),
        (call("add", a=1, b="x"), "b"),
    ],
)
def test_an_unusable_call_becomes_feedback(play, said, told):
    trajectory = play([said + END, "I give up." + END])
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert trajectory.failures == {"model": 1}
    assert told in tool_texts(trajectory)[0]


def test_unusable_calls_in_a_row_end_the_episode(play):
    bad, good = call("nothing") + END, call("add", a=1, b=1) + END
    trajectory = play([bad, bad, good, bad, bad, bad], max_invalid_turns=3)
    assert trajectory.stop_reason is StopReason.INVALID_CALLS
    assert trajectory.num_turns == 6
    assert trajectory.failures == {"model": 5}


def test_calls_inside_thinking_are_not_calls(play):
    trajectory = play([f"<think>\n{call('add', a=1, b=1)}\n</think>\n\nno call" + END])
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert tool_texts(trajectory) == []


def test_a_turn_cut_by_length_is_not_executed(play, ids_of):
    whole = call("add", a=2, b=3) + END
    trajectory = play([whole], max_turn_tokens=len(ids_of(whole)) - 1)
    assert trajectory.stop_reason is StopReason.MAX_TURN_TOKENS
    assert tool_texts(trajectory) == []
    assert trajectory.reward == 1.0  # judged all the same: the environment decides what a cut episode is worth


def test_all_calls_of_a_turn_run_at_once_and_answer_in_order(play):
    class Meet(Tool):
        """Returns when three calls are there."""

        timeout = 5.0

        def __init__(self):
            self.waiting = 0
            self.all_there = asyncio.Event()

        async def call(self, ctx, number: int) -> str:
            self.waiting += 1
            if self.waiting == 3:
                self.all_there.set()
            await self.all_there.wait()
            return f"met {number}"

    said = "\n".join(call("meet", number=i) for i in range(3))
    trajectory = play([said + END, "done" + END], Talk(tools=[Meet()]))
    assert tool_texts(trajectory) == ["met 0", "met 1", "met 2"]


def test_calls_over_the_parallel_limit_are_answered(play):
    said = "\n".join(call("add", a=i, b=0) for i in range(4))
    trajectory = play([said + END, "done" + END], max_parallel_calls=2)
    texts = tool_texts(trajectory)
    assert texts[:2] == ["0", "1"]
    assert len(texts) == 4
    assert all("Not run" in text and "2" in text for text in texts[2:])


def test_a_malformed_call_keeps_its_place_among_the_answers(play):
    said = "\n".join([call("add", a=1, b=0), "<tool_call>\n{oops\n</tool_call>", call("add", a=2, b=0)])
    trajectory = play([said + END, "done" + END])
    first, second, third = tool_texts(trajectory)
    assert (first, third) == ("1", "2")
    assert "JSON" in second


def test_long_observations_lose_their_middle(play, renderer):
    @tool
    async def shout() -> str:
        """Much text."""
        return "start " + "abc def " * 5000 + "end"

    trajectory = play([call("shout") + END, "done" + END], Talk(tools=[shout]), max_observation_tokens=100)
    (text,) = tool_texts(trajectory)
    assert len(renderer.encode(text)) <= 100
    assert text.startswith("start ")
    assert text.endswith("end")
    assert "characters cut" in text


def test_the_trajectory_limit_leaves_the_observation_out(play, renderer, ids_of):
    env = Talk()
    prompt = renderer.render_prompt([{"role": "user", "content": "2 + 3?"}], env.toolset.schemas)
    turn = call("add", a=2, b=3) + END
    trajectory = play([turn], env, max_tokens=len(prompt) + len(ids_of(turn)) + 5)
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert len(trajectory) == len(prompt) + len(ids_of(turn))
    assert tool_texts(trajectory) == ["5"]


def test_a_prompt_without_room(play):
    trajectory = play(["5" + END], max_tokens=10)
    assert trajectory.stop_reason is StopReason.PROMPT_TOO_LONG
    assert trajectory.num_sampled == 0
    assert trajectory.reward is None
    assert trajectory.failures == {FailureKind.ENV: 1}
    shown = with_fix(str(trajectory.error), "Correct the environment.")
    assert shown.endswith("raise limits.max_tokens, or shorten the prompt or the tools."), "the fix is not another one"


def test_an_environment_that_talks_back(play):
    trajectory = play(["one" + END, "two" + END], Talk(replies=["and then?"]))
    assert [message["role"] for message in trajectory.messages] == ["user", "assistant", "user", "assistant"]
    assert trajectory.turn_rewards == [0.25, 0.0]
    assert trajectory.reward == 1.25


def test_a_tool_may_end_the_episode_and_reward_its_turn(play):
    @tool
    async def submit() -> ToolResult:
        """Hand in."""
        return ToolResult("thanks", reward=0.5, stop=True, metrics={"submitted": 1.0})

    trajectory = play([call("submit") + END], Talk(tools=[submit], score=0.0))
    assert trajectory.stop_reason is StopReason.TOOL_STOPPED
    assert trajectory.reward == 0.5
    assert trajectory.metrics["tool/submitted"] == 1.0
    assert tool_texts(trajectory) == ["thanks"]


def test_tools_share_state_that_the_reward_reads(play):
    class Keep(Tool):
        """Count."""

        def __init__(self, name):
            self.name = name

        async def call(self, ctx):
            ctx.shared_state["calls"] = ctx.shared_state.get("calls", 0) + 1

    class Counted(Talk):
        async def score(self, trajectory):
            return float(trajectory.shared_state["calls"])

    trajectory = play([call("a") + END, call("b") + END, "done" + END], Counted(tools=[Keep("a"), Keep("b")]))
    assert trajectory.reward == 2.0
    assert trajectory.shared_state == {}


def test_tools_see_the_conversation_up_to_the_turn_that_calls_them(play):
    seen = []

    class Look(Tool):
        """Look back."""

        async def call(self, ctx):
            seen.append([(message["role"], bool(message.get("tool_calls"))) for message in ctx.messages])
            return "looked"

    play([call("look") + END, call("look") + END, "done" + END], Talk(tools=[Look()]))
    first = [("user", False), ("assistant", True)]
    assert seen == [first, [*first, ("tool", False), ("assistant", True)]]


def test_wall_time_cuts_a_hanging_tool_and_releases_its_session(play):
    class Hang(Tool):
        """Never returns."""

        closed = 0

        async def open(self, ctx):
            return "state"

        async def call(self, ctx) -> str:
            await asyncio.sleep(60)
            return "never"

        async def close(self, ctx):
            type(self).closed += 1

    env = Talk(tools=[Hang()])
    trajectory = play([call("hang") + END], env, max_seconds=0.2)
    assert trajectory.stop_reason is StopReason.MAX_SECONDS
    assert Hang.closed == 1
    assert env.closed == 1


_NOT_FINITE = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("reward", _NOT_FINITE)
def test_rewards_that_are_not_finite_are_failures_of_their_source(play, reward):
    class Env(Talk):
        async def step(self, message):
            return Observation(), reward, True, False

    judged = play(["5" + END], Talk(score=reward))
    assert (judged.reward, judged.failures, judged.stop_reason) == (None, {"judge": 1}, StopReason.COMPLETED)
    stepped = play(["5" + END], Env())
    assert (stepped.reward, stepped.failures, stepped.stop_reason) == (None, {"env": 1}, StopReason.ENV_ERROR)

    @tool
    async def bonus() -> ToolResult:
        """Give a reward."""
        return ToolResult("done", reward=reward)

    @tool
    async def measure() -> ToolResult:
        """Give a metric."""
        return ToolResult("done", metrics={"size": reward})

    called = play([call("bonus") + call("measure") + END, "5" + END], Talk([bonus, measure]))
    assert (called.reward, called.failures) == (1.0, {"tool": 2})
    assert all("must be a finite number" in text for text in tool_texts(called))
    for trajectory in (judged, stepped):
        assert "must be a finite number" in trajectory.error


def test_rewards_that_add_up_to_infinity_are_a_failure_of_the_judge(play):
    class Env(Talk):
        async def step(self, message):
            return Observation(), 1e308, True, False

    trajectory = play(["5" + END], Env(score=1e308))
    assert (trajectory.reward, trajectory.failures) == (None, {"judge": 1})


def test_a_reward_that_raises_leaves_no_reward(play):
    trajectory = play(["5" + END], Talk(score=KeyError("answer")))
    assert trajectory.reward is None
    assert trajectory.failures == {"judge": 1}
    assert "KeyError" in trajectory.error
    assert trajectory.stop_reason is StopReason.COMPLETED


def test_an_environment_that_raises_ends_its_own_episode(play):
    class Broken(Talk):
        async def step(self, message):
            raise RuntimeError("lost the board")

    env = Broken()
    trajectory = play(["5" + END], env)
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert trajectory.failures == {"env": 1}
    assert "lost the board" in trajectory.error
    assert env.closed == 1


def test_an_engine_that_fails_ends_its_episode(renderer):
    class Failing(ScriptedEngine):
        async def generate(self, prompt, params, **_):
            raise EngineError("out of memory")

    trajectory = asyncio.run(AgentLoop(Failing([[1]]), renderer).run(Talk(), trajectory_id="t"))
    assert trajectory.stop_reason is StopReason.ENGINE_ERROR
    assert trajectory.failures == {"engine": 1}
    assert trajectory.reward is None


def test_cancelling_releases_everything(renderer, ids_of):
    async def scenario():
        engine = ScriptedEngine([ids_of("5" + END), ids_of("6" + END)])
        await engine.pause()
        env = Talk()
        task = asyncio.create_task(AgentLoop(engine, renderer).run(env, trajectory_id="t"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.resume()
        again = await engine.generate([1], SamplingParams(max_tokens=9), trajectory_id="t")
        return env.closed, list(again.ids)

    assert asyncio.run(scenario()) == (1, list(ids_of("5" + END)))  # the engine knows nothing of the first turn


def test_tokens_know_the_version_that_sampled_them(renderer, ids_of):
    async def scenario():
        engine = ScriptedEngine([ids_of(call("update") + END), ids_of("5" + END)])

        @tool(inline=True)
        async def update() -> str:
            """Publish new weights while the episode runs."""
            await engine.update_weights(TensorWeights([]), version=3)
            return "ok"

        return await AgentLoop(engine, renderer).run(Talk(tools=[update]), trajectory_id="t")

    trajectory = asyncio.run(scenario())
    first, second = trajectory.sampled_segments()
    versions = trajectory.versions
    assert set(versions[first.start : first.end]) == {0}
    assert set(versions[second.start : second.end]) == {3}


def test_same_seed_same_trajectory(play):
    from agentloop.types.trajectory_io import to_dict

    def episode():
        data = to_dict(play([call("add", a=2, b=3) + END, "5" + END]))
        data["metrics"] = {name: value for name, value in data["metrics"].items() if not name.startswith("seconds")}
        return data

    assert episode() == episode()


def test_a_tool_that_is_a_move_says_why_the_episode_ended(play):
    class Move(Tool):
        """Move."""

        async def call(self, ctx, why: str) -> ToolResult:
            reason = StopReason(why)
            failure = FailureKind.ENV if reason.is_failure else None
            return ToolResult(f"{ctx.env.task['question']} over", stop=reason, failure=failure)

    for reason in (StopReason.COMPLETED, StopReason.ENV_TRUNCATED):
        trajectory = play([call("move", why=reason) + END], Talk(tools=[Move()]))
        assert (trajectory.stop_reason, trajectory.reward, trajectory.error) == (reason, 1.0, None)
    failed = play([call("move", why="env_error") + END], Talk(tools=[Move()]))
    assert (failed.stop_reason, failed.reward) == (StopReason.ENV_ERROR, None)
    assert failed.error == "2 + 3? over"
    assert failed.failures["env"] == 1


@pytest.mark.parametrize(
    ("stage", "failures"), [("reset", {"env": 1}), ("step", {"env": 1}), ("score", {"judge": 1}), ("close", {"env": 1})]
)
@pytest.mark.parametrize("kind", ["async", "stubborn", "in a thread"])
def test_a_call_that_takes_too_long_is_a_failure_that_is_counted(monkeypatch, play, stage, failures, kind):
    monkeypatch.setattr(time_limit, "_CLEANUP_SECONDS", 0.05)
    may_end = threading.Event()

    class Slow(Talk):
        pass

    def wait(self, *_):
        may_end.wait(60)

    async def wait_async(self, *_):
        await asyncio.Event().wait()

    async def wait_stubbornly(self, *_):
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    ways = {"async": wait_async, "stubborn": wait_stubbornly, "in a thread": threaded(wait)}
    setattr(Slow, stage, ways[kind])
    limit = "max_reward_seconds" if stage == "score" else "max_env_seconds"
    trajectory = play(["5<|im_end|>"], Slow(tools=()), **{limit: 0.05})
    may_end.set()
    assert trajectory.failures == failures
    assert trajectory.metrics[f"overruns/{stage}"] == 1
    assert f"TimeoutError: it took longer than limits.{limit}=0.05" in trajectory.error
    assert trajectory.reward == (1.0 if stage == "close" else None)


@pytest.mark.parametrize(
    ("stage", "failures"), [("reset", {"env": 1}), ("step", {"env": 1}), ("score", {"judge": 1}), ("close", {"env": 1})]
)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "in a thread"])
def test_code_that_exits_fails_its_own_episode(play, stage, failures, is_async):
    class Exits(Talk):
        pass

    def leave(self, *_):
        raise SystemExit(3)

    async def leave_async(self, *_):
        leave(self)

    setattr(Exits, stage, leave_async if is_async else threaded(leave))
    trajectory = play(["5<|im_end|>"], Exits(tools=()))
    assert trajectory.failures == failures
    assert "RuntimeError: it called sys.exit(3) (test_loop.py, line" in trajectory.error
