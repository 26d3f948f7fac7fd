import asyncio
import logging
import math
import threading
import time
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import AfterValidator, BaseModel

from agentloop.errors import FailureKind, ToolError, UserError, named
from agentloop.tools.base import Tool, ToolContext, ToolResult
from agentloop.tools.function import tool
from agentloop.tools.schema import SchemaArguments
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall


class Counter(Tool):
    """Count up."""

    timeout = 1.0

    def __init__(self):
        self.opened = self.closed = 0
        self.drawn: list[int] = []

    async def open(self, ctx: ToolContext) -> list[int]:
        self.opened += 1
        await asyncio.sleep(0.01)
        self.drawn.append(ctx.rng.randrange(1000))
        return self.drawn[-1:]

    async def call(self, ctx: ToolContext, by: int = 1) -> str | ToolResult:
        ctx.state.append(by)
        return ToolResult(str(sum(ctx.state[1:])), reward=0.5, metrics={"by": by})

    async def close(self, ctx: ToolContext) -> None:
        self.closed += 1


class Misbehaves(Tool):
    """Does whatever it is told to."""

    timeout = 0.1

    async def call(self, ctx: ToolContext, how: str) -> str:
        match how:
            case "sleeps":
                await asyncio.sleep(10)
            case "raises":
                raise KeyError("missing")
            case "raises on purpose":
                raise ToolError("No such city. Try Rome.")
            case "raises nothing to say":
                raise ValueError
            case "raises much":
                raise ValueError("x" * 10_000)
            case "raises a timeout of its own":
                raise TimeoutError("upstream")
            case "exits":
                raise SystemExit(1)
            case "raises what cannot be written":
                raise type("Unwritable", (Exception,), {"__str__": lambda self: self.message})()
            case "panics":
                raise type("Panic", (BaseException,), {})("unwrap on None")
            case "cancels itself":
                raise asyncio.CancelledError
            case "returns itself":
                return self  # type: ignore[return-value]
        return None  # type: ignore[return-value]


def call(name: str, **arguments) -> ToolCall:
    return ToolCall(name, arguments, "call_0")


def sessions(*tools, seed=0, images=()):
    return Toolset(tools).sessions("trajectory", {"answer": 42}, seed, images)


def soon() -> float:
    return time.monotonic() + 5


async def test_state_lasts_from_the_first_call_to_close():
    counter = Counter()
    mine, other = (Toolset([counter]).sessions(name, {}, 0) for name in "ab")
    assert counter.opened == 0
    assert (await mine.call(call("counter", by=2), soon())).content == "2"
    assert (await mine.call(call("counter", by="3"), soon())) == ToolResult("5", reward=0.5, metrics={"by": 3})
    assert (await other.call(call("counter"), soon())).content == "1"
    assert await mine.close() == []
    assert await mine.close() == []
    assert (counter.opened, counter.closed) == (2, 1)


async def test_concurrent_calls_open_once():
    counter = Counter()
    both = sessions(counter)
    results = await asyncio.gather(*[both.call(call("counter"), soon()) for _ in range(5)])
    assert sorted(result.content for result in results) == ["1", "2", "3", "4", "5"]
    assert counter.opened == 1


async def test_rng_is_seeded_by_the_trajectory():
    counter = Counter()
    for seed in (1, 1, 2):
        await sessions(counter, seed=seed).call(call("counter"), soon())
    assert counter.drawn[0] == counter.drawn[1] != counter.drawn[2]


async def test_unknown_tools_and_invalid_arguments_are_model_errors():
    session = sessions(Counter(), Misbehaves())
    unknown = await session.call(call("conter", by=1), soon())
    assert unknown.content == "There is no tool 'conter'. Did you mean 'counter'? Tools: counter, misbehaves."
    wrong = await session.call(call("counter", by="two"), soon())
    assert wrong.content.startswith("Wrong arguments for 'counter':\nby: input should be a valid integer")
    for result in (unknown, wrong):
        assert result.failure is FailureKind.MODEL
        assert result.is_error


@pytest.mark.parametrize(
    ("how", "content"),
    [
        ("sleeps", "The call took longer than the 0.1 s that it had."),
        ("raises", "KeyError: 'missing'"),
        ("raises on purpose", "No such city. Try Rome."),
        ("raises nothing to say", "ValueError"),
        ("raises much", "ValueError: " + "x" * 485 + "..."),
        ("raises a timeout of its own", "TimeoutError: upstream"),
        ("exits", "SystemExit: 1"),
        ("raises what cannot be written", "Unwritable"),
        ("panics", "Panic: unwrap on None"),
        ("cancels itself", "The tool was cancelled."),
        ("returns nothing", f"TypeError: {named(Misbehaves.call)} returned None: return a string for the model"),
        (
            "returns itself",
            f"TypeError: {named(Misbehaves.call)} returned Misbehaves: return a string, a ToolResult or a JSON value",
        ),
    ],
)
async def test_any_tool_outcome_becomes_a_result(how, content):
    result = await sessions(Misbehaves()).call(call("misbehaves", how=how), soon())
    assert result == ToolResult(content, is_error=True, failure=FailureKind.TOOL)


class Place(BaseModel):
    city: str


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("as it is", "as it is"),
        (3, "3"),
        (0.5, "0.5"),
        (True, "true"),
        ({"Zürich": [1, None]}, '{"Zürich":[1,null]}'),
        (Place(city="Rome"), '{"city":"Rome"}'),
        ({"means": [math.nan, math.inf, -math.inf]}, '{"means":["NaN","Infinity","-Infinity"]}'),
        (math.nan, '"NaN"'),
    ],
)
async def test_values_are_formatted_as_json(value, content):
    @tool(inline=True)
    def look_up() -> Any:
        """Look it up."""
        return value

    assert await sessions(look_up).call(call("look_up"), soon()) == ToolResult(content)


class Blocking(Tool):
    """Written without async."""

    timeout = 5.0
    threads: set[str]
    event: threading.Event

    def start(self):
        self.threads = {threading.current_thread().name}

    def open(self, ctx):
        self.threads.add(threading.current_thread().name)
        self.event = threading.Event()
        return self.event

    def call(self, ctx: ToolContext, sign: str = "") -> str:
        """Wait for a call that gives the sign."""
        self.threads.add(threading.current_thread().name)
        if sign:
            ctx.state.set()
        assert ctx.state.wait(5)
        return f"seen {sign}"

    def close(self, ctx):
        ctx.state.clear()

    def shutdown(self):
        self.threads.add(threading.current_thread().name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"content": None},
        {"content": 3},
        {"content": ["text"]},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "image_url", "image_url": "data:"}]},
        {"content": [{"type": "image", "image": "x.png"}]},
        {"content": [{"type": "image", "image": None}]},
        {"content": "", "reward": None},
        {"content": "", "metrics": {"seconds": "3"}},
        {"content": "", "metrics": None},
        {"content": "", "stop": "yes"},
        {"content": "", "stop": 1},
        {"content": "", "is_error": "no"},
    ],
)
async def test_invalid_result_fails_only_its_call(wrong):
    @tool
    async def wrongly() -> ToolResult:
        return ToolResult(**wrong)

    result = await Toolset([wrongly]).sessions("t", {}, 0).call(ToolCall("wrongly", {}, "1"), time.monotonic() + 10)
    assert (result.is_error, result.failure) == (True, FailureKind.TOOL)
    assert "of a ToolResult" in result.content


def test_flags_of_a_result_may_be_booleans_of_numpy():
    result = ToolResult("", is_error=np.False_, stop=np.True_)
    assert result.is_error is False
    assert result.stop is True


async def test_raising_validator_fails_only_its_call():
    @tool
    async def capital(country: Annotated[str, AfterValidator(lambda name: {"Italy": "Rome"}[name])]) -> str:
        return country

    endless = Counter()
    endless.arguments = SchemaArguments({"additionalProperties": {"$ref": "#"}}, what="a tool")
    deep: dict[str, object] = {}
    for _ in range(3000):
        deep = {"a": deep}
    sessions = Toolset([capital, endless]).sessions("t", {}, 0)
    for call in (ToolCall("capital", {"country": "Oz"}, "1"), ToolCall("counter", deep, "2")):
        result = await sessions.call(call, time.monotonic() + 10)
        assert (result.is_error, result.failure) == (True, FailureKind.TOOL)
        assert ("Oz" if call.name == "capital" else "RecursionError") in result.content


async def test_sync_methods_run_in_threads():
    tools = Toolset([blocking := Blocking()])
    await tools.start()
    session = tools.sessions("trajectory", {}, 0)
    waits = asyncio.create_task(session.call(call("blocking"), soon()))
    answered = await session.call(call("blocking", sign="go"), soon())
    assert [(await waits).content, answered.content] == ["seen ", "seen go"]
    assert await session.close() == []
    await tools.shutdown()
    assert not blocking.event.is_set()
    assert all(name.startswith("agentloop-tool") for name in blocking.threads)
    assert tools.schemas[0]["function"]["parameters"]["properties"]["sign"]["type"] == "string"


async def test_tool_exception_is_logged_once_per_location(caplog):
    @tool(inline=True)
    def divide(by: int) -> float:
        """Divide."""
        if by == 7:
            raise LookupError("seven")
        return 1 / by

    session = sessions(divide)
    with caplog.at_level(logging.WARNING):
        for by in (0, 0, 7, 1):
            await session.call(call("divide", by=by), soon())
    first, second = caplog.records
    assert "ZeroDivisionError: division by zero" in first.exc_text
    assert "LookupError: seven" in second.exc_text
    assert first.exc_text.count("File ") == 1  # the tool's own line, none of agentloop's


@pytest.mark.slow
async def test_blocking_tool_is_logged_once(caplog):
    @tool(inline=True)
    def sleeps() -> str:
        """Sleep where it should not."""
        time.sleep(0.6)
        return "slept"

    @tool
    def sleeps_in_a_thread() -> str:
        """Sleep where it may."""
        time.sleep(0.6)
        return "slept"

    session = sessions(sleeps, sleeps_in_a_thread)
    with caplog.at_level(logging.WARNING):
        for name in ("sleeps", "sleeps_in_a_thread", "sleeps"):
            assert (await session.call(call(name), soon())).content == "slept"
    (record,) = (record for record in caplog.records if "'sleeps'" in record.getMessage())
    assert "'sleeps' blocked all episodes of its worker for" in record.getMessage()


async def test_episode_deadline_limits_calls():
    start = time.monotonic()
    result = await sessions(Misbehaves()).call(call("misbehaves", how="sleeps"), start + 0.02)
    assert result.failure is FailureKind.TOOL
    assert time.monotonic() - start < 0.09
    late = await sessions(Misbehaves()).call(call("misbehaves", how="sleeps"), start - 1)
    assert late.content == "The call took longer than the 0 s that it had."


async def test_external_cancellation_propagates():
    task = asyncio.create_task(sessions(Misbehaves()).call(call("misbehaves", how="sleeps"), soon()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_failed_open_is_retried_and_not_closed():
    class Flaky(Counter):
        async def open(self, ctx):
            self.opened += 1
            if self.opened == 1:
                raise ToolError("busy")
            return []

    flaky = Flaky()
    session = sessions(flaky)
    assert (await session.call(call("flaky"), soon())).content == "busy"
    assert await session.close() == []
    assert flaky.closed == 0
    session = sessions(flaky)
    assert not (await session.call(call("flaky"), soon())).is_error
    await session.close()
    assert flaky.closed == 1


async def test_slow_open_times_out():
    class Slow(Counter):
        timeout = 0.05

        async def open(self, ctx):
            await asyncio.sleep(10)

    assert (await sessions(Slow()).call(call("slow"), soon())).failure is FailureKind.TOOL


async def test_every_close_runs_and_failures_are_reported():
    class Raises(Counter):
        async def close(self, ctx):
            raise RuntimeError("still in use")

    class Hangs(Counter):
        timeout = 0.05

        async def close(self, ctx):
            await asyncio.sleep(10)

    counter = Counter()
    session = sessions(Raises(), Hangs(), counter)
    for name in ("raises", "hangs", "counter"):
        await session.call(call(name), soon())
    failures = await session.close()
    assert counter.closed == 1
    assert failures[0] == "The tool 'raises' failed to close: RuntimeError: still in use"
    assert failures[1] == "The tool 'hangs' failed to close: OutOfTimeError: it took longer than 0.05 s"
    assert len(failures) == 2


async def test_close_continues_after_cancellation():
    class Slow(Counter):
        async def close(self, ctx):
            await asyncio.sleep(0.05)
            self.closed += 1

    slow = Slow()
    session = sessions(slow)
    await session.call(call("slow"), soon())
    closing = asyncio.create_task(session.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.sleep(0.1)
    assert slow.closed == 1


async def test_images_and_task_come_from_the_trajectory():
    @tool
    async def look(ctx: ToolContext) -> str:
        """Look."""
        return f"{len(ctx.images)} {ctx.task['answer']}"

    images: list = []
    session = sessions(look, images=images)
    assert (await session.call(call("look"), soon())).content == "0 42"
    images.append("one more")
    assert (await session.call(call("look"), soon())).content == "1 42"


def test_names_and_descriptions_have_defaults():
    class HTTPSearch2Tool(Tool):
        """Search.

        Args:
            query: what for
        """

        async def call(self, ctx, query: str) -> str:
            return query

    class Sub(HTTPSearch2Tool):
        pass

    function = Toolset([HTTPSearch2Tool()]).schemas[0]["function"]
    assert (function["name"], function["description"]) == ("http_search2_tool", "Search.")
    assert function["parameters"]["properties"]["query"]["description"] == "what for"
    assert (Sub.name, Sub().description) == ("sub", "Search.")


def test_schemas_are_one_object_and_names_are_unique():
    toolset = Toolset([Counter()])
    assert toolset.schemas is toolset.schemas
    with pytest.raises(UserError, match="Two tools have the name 'counter'"):
        Toolset([Counter(), Counter()])


async def test_failed_start_stops_the_started_tools():
    events = []

    class Good(Counter):
        async def start(self):
            events.append("start")

        async def shutdown(self):
            events.append("shutdown")

    class Bad(Counter):
        async def start(self):
            raise UserError("install it")

        async def shutdown(self):
            raise RuntimeError("never started")

    with pytest.raises(UserError, match="install it"):
        await Toolset([Bad(), Good()]).start()
    with pytest.raises(UserError, match="install it"):
        await Toolset([Good(), Bad()]).start()
    assert events == ["shutdown", "start", "shutdown"]


def test_tools_that_cannot_be_called_raise_when_the_toolset_is_made():
    class Nothing(Tool):
        """Has no call."""

    class City(Tool):
        """Lacks the context."""

        async def call(self, city: str) -> str:
            return city

    class Empty(Tool):
        """Takes nothing."""

        def call(self) -> str:
            return ""

    for tools, words in (
        ([Counter], r"got type <class .*Counter'>. Create the class, as in Toolset\(\[Weather\(\)\]\)"),
        ([print], "or decorate the function with @tool"),
        ([Nothing()], r"'nothing' has no method call\(self, ctx, ...\)"),
        ([City()], r"City.call \(test_sessions.py, line \d+\) has no .* Write it as call\(self, ctx, city, ...\)"),
        ([Empty()], r"Write it as call\(self, ctx\)"),
    ):
        with pytest.raises(UserError, match=words):
            Toolset(tools)


async def test_a_wrong_result_names_the_function():
    @tool
    def forgets(ctx) -> str:
        """Forget to return."""

    result = await sessions(forgets).call(call("forgets"), soon())
    assert result.content.startswith("TypeError: forgets (test_sessions.py, line ")


async def test_lone_surrogates_in_results_are_replaced():
    @tool
    def odd():
        "Odd."
        return ToolResult([{"type": "text", "text": "a\ud800"}])

    @tool
    def pair():
        "Two halves."
        return "\ud83d\ude00"

    both = sessions(odd, pair)
    assert (await both.call(call("odd"), soon())).content == [{"type": "text", "text": "a\ufffd"}]
    assert (await both.call(call("pair"), soon())).content == "😀"
