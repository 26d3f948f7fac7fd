"""Environments whose actions are list_tools and call_tool, on a server of the real openenv package."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from agentloop import StopReason
from agentloop.envs.openenv.env import OpenEnv
from agentloop.envs.rewards import load_reward
from agentloop.envs.tool_env import ToolEnv
from agentloop.errors import UserError
from agentloop.tools.function import tool
from agentloop.tools.toolset import Toolset

ROW = {"id": "a", "seed": 1, "messages": [{"role": "user", "content": "Add up."}], "answer": "7"}


@pytest.fixture(scope="module")
def tools_url(url) -> str:
    return f"{url}/tools"


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def told(trajectory):
    return [m["content"] for m in trajectory.messages if m["role"] in ("tool", "user")]


def test_server_tools_are_offered_to_the_model(tools_url):
    functions = {s["function"]["name"]: s["function"] for s in OpenEnv(ROW, url=tools_url).toolset.schemas}
    assert set(functions) == {"note", "total", "picture"}
    assert functions["note"]["description"] == "Write a number down."
    assert functions["note"]["parameters"]["required"] == ["number"]
    assert functions["note"]["parameters"]["properties"]["number"]["description"] == "What to write."


def test_episode_of_calls_ends_with_an_answer(play, tools_url):
    row = {**ROW, "reset_options": {"start": 2}}
    env = OpenEnv(row, url=tools_url, reward=load_reward("exact"))
    trajectory = play(env, [call("note", number=5), call("total"), "7"])
    assert told(trajectory) == ["Add up.", "2 noted", "7"]
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.COMPLETED, 1.0)
    assert trajectory.metrics["moves"] == 2
    assert not trajectory.failures


def test_sessions_are_isolated(play, tools_url):
    for _ in range(2):
        env = OpenEnv(ROW, url=tools_url, reward=load_reward("exact"))
        assert told(play(env, [call("note", number=7), call("total"), "7"]))[-1] == "7"


def test_invalid_calls_are_model_errors(play, tools_url):
    env = OpenEnv(ROW, url=tools_url, reward=load_reward("exact"))
    trajectory = play(env, [call("note", number="seven"), call("noet", number=7), call("total", of=1), "7"])
    assert trajectory.failures == {"model": 3}
    assert "'seven' is not of type 'integer'" in told(trajectory)[1]
    assert "Did you mean 'note'?" in told(trajectory)[2]


def test_raising_tool_gives_a_result_and_the_session_continues(play, tools_url):
    env = OpenEnv(ROW, url=tools_url, reward=load_reward("exact"))
    trajectory = play(env, [call("note", number=-1), call("note", number=7), call("total"), "7"])
    assert "no negative numbers" in told(trajectory)[1]
    assert told(trajectory)[2:] == ["2 noted", "7"]
    assert not trajectory.failures
    assert (trajectory.metrics["succeeded/note"], trajectory.reward) == (1.0, 1.0)


def test_server_tools_are_added_to_configured_tools(play, tools_url):
    @tool
    def shout(word: str) -> str:
        """Shout."""
        return word.upper()

    toolset = Toolset([shout])
    env = OpenEnv(ROW, url=tools_url, toolset=toolset, reward=load_reward("exact"))
    trajectory = play(env, [call("shout", word="hey"), call("total"), "0"])
    assert told(trajectory)[1:] == ["HEY", "0"]
    assert ToolEnv(ROW, toolset=toolset).toolset is toolset


async def test_images_are_returned_as_images(tools_url):
    env = OpenEnv(ROW, url=tools_url)
    await env.reset()
    result = await env.act({"type": "call_tool", "tool_name": "picture", "arguments": {}})
    assert result.content[0]["image"].size == (1, 1)
    unknown = await env.act({"type": "call_tool", "tool_name": "nothing", "arguments": {}})
    assert (unknown.is_error, unknown.content) == (True, "Unknown tool: 'nothing'")
    await env.close()


def test_environment_without_reward_requires_a_reward(play, tools_url):
    trajectory = play(OpenEnv(ROW, url=tools_url), [call("total"), "0"])
    assert trajectory.reward is None
    assert trajectory.failures == {"judge": 1}


class _SchemaOnly(BaseHTTPRequestHandler):
    """Says that its actions are calls of tools, and speaks no websockets."""

    def do_GET(self):
        kind = {"const": "call_tool"}
        body = json.dumps({"action": {"type": "object", "properties": {"type": kind}}}).encode()
        self.send_response(200 if self.path == "/schema" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Quiet."""


@pytest.mark.slow
def test_server_that_cannot_list_tools_raises():
    server = HTTPServer(("127.0.0.1", 0), _SchemaOnly)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(UserError, match="Cannot list the tools"):
            OpenEnv(ROW, url=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
