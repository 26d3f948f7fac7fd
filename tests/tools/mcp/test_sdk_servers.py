"""Against servers of the official SDK, 1.x and 2.x, over both transports."""

import asyncio
import math
import os
import time
from pathlib import Path

import pytest

from agentloop.errors import FailureKind, UserError
from agentloop.tools import registry
from agentloop.tools.mcp.server import McpServer
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall

pytestmark = pytest.mark.slow


def is_alive(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


async def call(sessions, name: str, **arguments):
    return await sessions.call(ToolCall(name, arguments, "call_0"), math.inf)


def test_server_tools_are_listed(options):
    toolset = Toolset(registry.load_all("mcp", **options))
    assert set(toolset.tools) == {"add", "count", "fail", "wait", "image", "secrets", "die"}
    schema = next(schema for schema in toolset.schemas if schema["function"]["name"] == "add")
    assert schema["function"]["description"] == "Add two numbers."
    assert schema["function"]["parameters"]["required"] == ["a", "b"]
    assert schema["function"]["parameters"]["properties"]["a"]["type"] == "integer"


async def test_calls_return_text_images_and_errors(options):
    toolset = Toolset(await asyncio.to_thread(McpServer(**options).tools))
    await toolset.start()
    sessions = toolset.sessions("t", task={}, seed=0)
    assert (await call(sessions, "add", a=2, b=3)).content == "5"
    wrong = await call(sessions, "add", a="two", c=1)
    assert wrong.failure is FailureKind.MODEL
    assert "'two' is not of type 'integer'" in wrong.content
    assert "'b' is a required property" in wrong.content
    failed = await call(sessions, "fail", why="no luck")
    assert failed.is_error
    assert failed.failure is None
    assert "Error executing tool fail" in failed.content  # 2.x keeps the reason to itself
    text, image = (await call(sessions, "image")).content
    assert text == {"type": "text", "text": "a pixel"}
    assert image["image"].size == (1, 1)
    both = await asyncio.gather(*(call(sessions, "add", a=i, b=i) for i in range(20)))
    assert [result.content for result in both] == [str(2 * i) for i in range(20)]
    await sessions.close()
    await toolset.shutdown()


async def test_timed_out_call_leaves_the_session_usable(options):
    toolset = Toolset(await asyncio.to_thread(McpServer(**options).tools))
    sessions = toolset.sessions("t", task={}, seed=0)
    assert (await call(sessions, "add", a=1, b=1)).content == "2"
    slow = await sessions.call(ToolCall("wait", {"seconds": 30}, "call_0"), time.monotonic() + 0.5)
    assert slow.failure is FailureKind.TOOL
    assert "longer than" in slow.content
    assert (await call(sessions, "add", a=1, b=2)).content == "3"
    await sessions.close()


async def test_each_trajectory_gets_its_own_process(command):
    toolset = Toolset(await asyncio.to_thread(McpServer(command).tools))
    first, second = (toolset.sessions(name, task={}, seed=0) for name in ("first", "second"))
    answers = [(await call(sessions, "count")).content for sessions in (first, first, second)]
    (one, _, pid), (two, _, same), (other, _, another) = (answer.split() for answer in answers)
    assert (one, two, other) == ("1", "2", "1")
    assert pid == same != another
    await first.close()
    assert not is_alive(pid)
    assert is_alive(another)
    await second.close()
    assert not is_alive(another)


async def test_stateless_servers_share_one_process(command):
    toolset = Toolset(await asyncio.to_thread(McpServer(command, stateful=False, include=["count", "add"]).tools))
    await toolset.start()
    await toolset.start()
    first, second = (toolset.sessions(name, task={}, seed=0) for name in ("first", "second"))
    answers = [(await call(sessions, "count")).content for sessions in (first, second)]
    assert [answer.split()[0] for answer in answers] == ["1", "2"]
    await first.close()
    await second.close()
    pid = answers[0].split()[2]
    assert is_alive(pid)
    await toolset.shutdown()
    assert not is_alive(pid)


async def test_dead_server_fails_the_call_with_its_last_output(command):
    toolset = Toolset(await asyncio.to_thread(McpServer(command).tools))
    sessions = toolset.sessions("t", task={}, seed=0)
    for name in ("die", "count"):
        result = await call(sessions, name)
        assert result.failure is FailureKind.TOOL
        assert "last words" in result.content
    assert await sessions.close() == []


async def test_server_does_not_inherit_the_environment(command, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "x")
    server = McpServer(command, env={"ITS_SECRET": "y"})
    toolset = Toolset(await asyncio.to_thread(server.tools))
    sessions = toolset.sessions("t", task={}, seed=0)
    assert (await call(sessions, "secrets")).content == "ITS_SECRET"
    await sessions.close()


def test_tools_can_be_selected_and_renamed(options):
    assert [tool.name for tool in McpServer(**options, include=["count"], prefix="s_").tools()] == ["s_count"]
    with pytest.raises(UserError, match=r"no tool 'cuont'.*Did you mean 'count'"):
        McpServer(**options, include=["cuont"]).tools()


async def test_tools_can_be_listed_inside_an_event_loop(command):
    assert len(McpServer(command).tools()) == 7


def test_close_leaves_no_process(command):
    McpServer(command).tools()
    mine = [pid for pid in os.listdir("/proc") if pid.isdigit() and _command_of(pid) == command]
    assert mine == []


def _command_of(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []
