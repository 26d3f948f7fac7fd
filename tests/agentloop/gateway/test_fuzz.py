"""Programs that do whatever they like: each answered token is trained once, or the episode fails by kind."""

import asyncio
import base64
import io
import re
from array import array
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from tempfile import TemporaryDirectory

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from agentloop import AgentLoop, Limits, StopReason
from agentloop.engines.base import FinishReason, Generation
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.engines.token_listeners import listener
from agentloop.envs.agent.program import AgentProgram
from agentloop.errors import EngineError, FailureKind
from agentloop.recipes.deepeyes.tiny_model import build_model
from agentloop.rendering import renderer_for
from tests.support.dialects import DIALECTS, Chat, Responses, events_of

pytestmark = pytest.mark.slow

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
# Each answer tells the number of its turn.
SAID = ["#{}. yes", "<think>\nhm\n</think>\n\n#{}. so", '#{}. <tool_call>\n{{"name": "look"}}\n</tool_call>',
        "#{}. a<tool_call>\n{{bad</tool_call>", "#{}. é\n\n"]  # fmt: skip
ROW = {"messages": [{"role": "user", "content": "Do it."}], "answer": "5"}

text = st.text(max_size=6) | st.sampled_from(["<|im_end|>", "<think>", "\n", "#0.", "a picture", "picture"])
# What happens to one of the histories, and how the program then asks.
changes = st.sampled_from(["new", "append", "append", "append", "rewrite", "drop", "repeat", "swap", "back", "fork"])
ways = st.sampled_from(["whole", "whole", "stream", "stream", "leave", "ask again", "twice", "by name", "nonsense"])
steps = st.tuples(st.integers(0, 3), changes, ways, st.sampled_from(DIALECTS), text)
rounds = st.lists(st.lists(steps, min_size=1, max_size=3), min_size=1, max_size=5)  # the calls of a round run at once


@cache
def renderer():
    """The renderer of a model that sees images."""
    with TemporaryDirectory() as folder:
        return renderer_for(build_model(folder))


@cache
def picture(width):
    file = io.BytesIO()
    Image.new("RGB", (width, 60), "red").save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def content_of(added):
    if "picture" not in added:
        return added
    return [{"type": "text", "text": added}, {"type": "image_url", "image_url": {"url": picture(10 * len(added))}}]


class Scribe(ScriptedEngine):
    """Streams turns that tell their number; turn `fails_at` raises. Logprobs and versions occur once."""

    def __init__(self):
        super().__init__([[0]])
        self.begin(None)

    def begin(self, fails_at):
        self.fails_at, self.num_begun, self.said, self.shown = fails_at, 0, {}, {}

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        number, hear, prompt = self.num_begun, listener(), list(prompt)
        self.num_begun += 1
        if number == self.fails_at:
            raise EngineError("no memory")
        is_cut = number % 6 == 5
        spoken = SAID[number % len(SAID)].format(number)
        ids = [*renderer().encode(spoken), *([] if is_cut else [renderer().stop_token_ids[0]])]
        for token in ids:
            await asyncio.sleep(0)
            if hear is not None:
                hear([token])
        turn = Generation(
            array("i", ids),
            array("f", [-number - i / 1024 for i in range(len(ids))]),
            array("i", range(1000 * number, 1000 * number + len(ids))),
            FinishReason.LENGTH if is_cut else FinishReason.STOP,
        )
        self.said[number] = (prompt, turn)
        self.shown[number] = list(images)
        return turn


def changed(histories, which, change, added):
    """Change a history, and return its place and what the program asks with."""
    if change == "new" or not histories:
        histories.append([])
        which = len(histories) - 1
    which %= len(histories)
    if change == "fork":
        histories.append([*histories[which]])
        which = len(histories) - 1
    history = histories[which]
    at = len(added) % len(history) if history else 0
    if change == "rewrite" and history:
        history[at] = {**history[at], "content": added + "!"}
    elif change == "drop" and history:
        del history[at]
    elif change == "repeat" and history:
        history.insert(at, history[at])
    elif change == "swap" and len(history) > 1:
        history[at - 1], history[at] = history[at], history[at - 1]
    elif change == "back" and len(history) > 1:
        del history[-1]
    if not history or history[-1]["role"] == "assistant":
        calls = (history[-1] if history else {}).get("tool_calls") or ()
        history += [{"role": "tool", "tool_call_id": call["id"], "content": content_of(added)} for call in calls]
    if not history or history[-1]["role"] == "assistant":
        history.append({"role": "user", "content": content_of(added)})
    return which, [dict(message) for message in history]


class Program:
    """An agent that plays rounds of steps. It knows which turns it got an answer for."""

    def __init__(self, agent, client):
        self.agent, self.client = agent, client
        self.answered = Counter()
        self.histories = []
        self.names = {}
        self.num_repeated = 0

    async def play(self, task, model):
        for steps in self.agent:
            asked = [(changed(self.histories, *step[:2], step[4]), step) for step in steps]
            asks = (self.ask(model, *place, way, dialect) for place, (_, _, way, dialect, _) in asked)
            await asyncio.gather(*asks)
        return 1.0

    async def ask(self, model, which, history, way, dialect):
        if way == "twice":
            dialect = Chat  # the others have no `n`
        if way == "by name":
            dialect = Responses
        path = f"{model.base_url}/{dialect.path}"
        body = dialect.body(history, [TOOL] if len(history) % 2 else [])
        if way == "nonsense":
            answer = await self.client.post(
                path, json=body | {"messages": [{"role": "user", "content": [7]}], "input": [7]}
            )
            assert answer.status_code == 400
            assert answer.json()["error"]["message"]
            return
        if way in ("stream", "leave"):
            answer = await self.streamed(path, dialect, body, leaves=way == "leave")
        else:
            answer = await self.whole(path, dialect, body, way, which)
        if answer is not None:
            self.keep(which, history, dialect.message(answer))

    async def whole(self, path, dialect, body, way, which):
        if way == "twice":
            body["n"] = 2
        if way == "ask again":  # equal requests could not be told from each other
            self.num_repeated += 1
            body["user"] = str(self.num_repeated)
        if way == "by name":
            body["store"] = True
            if which in self.names:
                body |= {"previous_response_id": self.names[which], "input": body["input"][-1:]}
        answer = await self.client.post(path, json=body)
        if way == "ask again" and answer.status_code == 200:
            repeated = await self.client.post(path, json=body, headers={"x-stainless-retry-count": "1"})
            assert dialect.message(repeated.json()) == dialect.message(answer.json())
        if answer.status_code != 200:
            assert answer.json()["error"]["message"]
            return None
        found = answer.json()
        for choice in found.get("choices", [])[1:]:
            self.count(choice["message"])
        if way == "by name":
            self.names[which] = found["id"]
        return found

    async def streamed(self, path, dialect, body, *, leaves):
        lines = []
        async with self.client.stream("POST", path, json=body | {"stream": True}) as answer:
            if answer.status_code != 200:
                return None
            async with aclosing(answer.aiter_lines()) as received:
                async for line in received:
                    lines.append(line)
                    if leaves and len(lines) > 4:
                        return None
        return dialect.whole(events_of(lines))

    def count(self, message):
        self.answered[int(re.search(r"#(\d+)\.", message["content"])[1])] += 1

    def keep(self, which, history, message):
        self.count(message)
        self.histories[which] = [*history, message]


@pytest.fixture(scope="module")
def play():
    """Play an episode of an agent. One that waits keeps the server for all of them."""
    engine, over = Scribe(), asyncio.Event()
    loop = AgentLoop(engine, renderer(), limits=Limits(max_invalid_turns=1000))

    async def wait(task, model):
        await over.wait()

    async def run(agent, max_turns, fails_at):
        engine.begin(fails_at)
        program = Program(agent, client)
        loop.limits = replace(loop.limits, max_turns=max_turns)
        trajectory = await loop.run(AgentProgram(ROW, agent=program.play), trajectory_id="t", group_id="g", seed=3)
        return engine, program, trajectory

    with asyncio.Runner() as runner:
        client = httpx.AsyncClient(timeout=60)
        waiting = runner.get_loop().create_task(loop.run(AgentProgram(ROW, agent=wait), trajectory_id="w"))
        yield lambda *of: runner.run(run(*of))
        over.set()
        runner.run(asyncio.wait_for(waiting, 60))
        runner.run(client.aclose())


@given(agent=rounds, max_turns=st.sampled_from([2, 1000]), fails_at=st.none() | st.integers(0, 8))
@settings(max_examples=100, deadline=None)
def test_each_answered_token_is_trained_once_or_the_episode_fails_by_kind(play, agent, max_turns, fails_at):
    engine, program, trajectory = play(agent, max_turns, fails_at)
    has_failed = fails_at is not None and engine.num_begun > fails_at
    assert trajectory.stop_reason is (StopReason.ENGINE_ERROR if has_failed else StopReason.COMPLETED), trajectory.error
    assert (FailureKind.ENGINE in trajectory.failures) == has_failed
    trained = set()
    for stream in [trajectory, *trajectory.branches]:
        ids, mask = stream.token_ids, stream.loss_mask
        assert len(ids) == len(mask) == len(stream.logprobs) == len(stream.versions)
        assert (stream.versions[~mask] == -1).all()
        for segment in stream.sampled_segments():
            turn = slice(segment.start, segment.end)
            number = int(stream.versions[segment.start]) // 1000
            prompt, sampled = engine.said[number]
            assert ids[: segment.start].tolist() == prompt
            shown = [image for earlier in stream.segments if earlier.end <= segment.start for image in earlier.images]
            assert shown == engine.shown[number]
            assert ids[turn].tolist() == list(sampled.ids)
            assert stream.logprobs[turn].tolist() == list(sampled.logprobs)
            assert mask[turn].all()
            assert number not in trained, "a turn is trained in two streams"
            trained.add(number)
    assert program.answered.keys() <= trained
    assert set(program.answered.values()) <= {1}, "two requests got one turn"
