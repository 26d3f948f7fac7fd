"""/v1/tools: the registered tools, and further ones, over HTTP."""

import base64
import io

import pytest
from PIL import Image

from agentloop.errors import UserError
from agentloop.tools.code_interpreter import CodeInterpreter
from agentloop.tools.serving.state.toolbox import Toolbox
from tests.support.installed import install

pytestmark = pytest.mark.slow

TOOLS = '''
import asyncio
from PIL import Image
from agentloop import Tool, ToolResult, tool
from agentloop.errors import UserError

class Counter(Tool):
    """Count calls."""
    closed = 0

    async def open(self, ctx):
        return {"count": ctx.task.get("start", 0)}

    async def call(self, ctx, by: int = 1) -> str:
        ctx.state["count"] += by
        return str(ctx.state["count"])

    async def close(self, ctx):
        Counter.closed += 1

@tool
def picture(width: int) -> ToolResult:
    """Draw."""
    parts = [{"type": "text", "text": "here"}, {"type": "image", "image": Image.new("RGB", (width, 2), "red")}]
    return ToolResult(parts, reward=0.5, metrics={"width": float(width)})

class Broken(Tool):
    """Cannot start."""

    async def start(self):
        raise UserError("Install the database.")

    async def call(self, ctx) -> str:
        return ""

@tool
async def slow() -> str:
    """Wait."""
    await asyncio.sleep(60)
    return ""

@tool
def raising() -> str:
    """Raise."""
    raise RuntimeError("no luck")
'''


@pytest.fixture
def specs(tmp_path) -> tuple[str, ...]:
    (tmp_path / "tools.py").write_text(TOOLS)
    return tuple(f"{tmp_path}/tools.py:{name}" for name in ("Counter", "picture", "slow", "raising"))


async def call(client, name, arguments=None, **fields) -> dict:
    response = await client.post(f"/v1/tools/{name}/call", json={"arguments": arguments or {}, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def test_tool_list_contains_schemas(by_hand, specs):
    async with by_hand(tools=specs) as (client, _):
        tools = {tool["name"]: tool for tool in (await client.get("/v1/tools")).json()["tools"]}
        assert {"code_interpreter", "image_zoom_in_tool", "counter", "picture"} <= set(tools)
        assert not {"bash", "edit", "terminal"} & set(tools), "they need the box of an episode"
        assert tools["counter"]["description"] == "Count calls."
        assert tools["picture"]["parameters"]["required"] == ["width"]


async def test_call_without_session_has_fresh_state(by_hand, specs):
    async with by_hand(tools=specs) as (client, _):
        for _ in range(2):
            body = await call(client, "counter", {"by": 3})
            assert body["content"] == [{"type": "text", "text": "3"}]
            assert (body["is_error"], body["failure"], body["stop"]) == (False, None, False)
        counter = client.daemon.toolbox.toolset.tools["counter"]
        assert type(counter).closed == 2


async def test_session_keeps_state(by_hand, specs):
    async with by_hand(tools=specs) as (client, _):
        session = (await client.post("/v1/tools/sessions", json={"task": {"start": 10}})).json()["id"]
        for expected in ("11", "12"):
            assert (await call(client, "counter", session=session))["content"][0]["text"] == expected
        closed = type(client.daemon.toolbox.toolset.tools["counter"]).closed
        assert (await client.delete(f"/v1/tools/sessions/{session}")).status_code == 200
        assert type(client.daemon.toolbox.toolset.tools["counter"]).closed == closed + 1
        response = await client.post("/v1/tools/counter/call", json={"session": session})
        assert response.status_code == 404
        assert "POST /v1/tools/sessions" in response.json()["detail"]


async def test_images_round_trip(by_hand, specs):
    async with by_hand(tools=specs) as (client, _):
        body = await call(client, "picture", {"width": 7})
        text, image = body["content"]
        assert (text, image["mimeType"]) == ({"type": "text", "text": "here"}, "image/png")
        assert Image.open(io.BytesIO(base64.b64decode(image["data"]))).size == (7, 2)
        assert (body["reward"], body["metrics"]) == (0.5, {"width": 7.0})
        buffer = io.BytesIO()
        Image.new("RGB", (400, 300), "blue").save(buffer, format="PNG")
        shown = base64.b64encode(buffer.getvalue()).decode()
        session = (await client.post("/v1/tools/sessions", json={"images": [shown]})).json()["id"]
        body = await call(client, "image_zoom_in_tool", {"bbox_2d": [0, 0, 200, 150]}, session=session)
        assert not body["is_error"], body
        assert [part["type"] for part in body["content"]].count("image") == 1


async def test_call_errors_become_results(by_hand, specs):
    async with by_hand(tools=specs) as (client, _):
        refused = await call(client, "counter", {"by": "many"})
        assert (refused["is_error"], refused["failure"]) == (True, "model")
        failed = await call(client, "raising")
        assert (failed["is_error"], failed["failure"]) == (True, "tool")
        assert "no luck" in failed["content"][0]["text"]


async def test_code_interpreter_uses_the_daemon_sandbox(by_hand):
    async with by_hand() as (client, sandbox):
        body = await call(client, "code_interpreter", {"code": "print(1)"})
        assert body["content"] == [{"type": "text", "text": "1"}]
        assert sandbox.executions[-1].code == "print(1)"


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("countre/call", {}, 404, "Did you mean 'counter'?"),
        ("sql_query/call", {}, 404, "start it with --tool sql_query, or with its options"),
        ("counter/call", {"arguments": []}, 422, "arguments"),
        ("counter/call", {"session": 5}, 422, "session"),
        ("sessions", {"images": ["%"]}, 422, "images.0"),
        ("sessions", {"images": ["YWJj"]}, 422, "images.0"),
        ("sessions", {"seed": "x"}, 422, "seed"),
    ],
)
async def test_invalid_calls_are_rejected(by_hand, specs, path, body, status, says):
    async with by_hand(tools=specs) as (client, _):
        response = await client.post(f"/v1/tools/{path}", json=body)
        assert response.status_code == status, response.text
        assert says in response.text


async def test_disconnected_client_cancels_its_call(by_hand, specs, until):
    async with by_hand(tools=specs) as (client, _):
        _, writer = await client.send_only("POST", "/v1/tools/slow/call", {})
        await until(lambda: client.server.server_state.tasks)
        writer.close()
        await until(lambda: not client.server.server_state.tasks)


def test_requested_tool_must_load(by_hand):
    with pytest.raises(UserError, match="nowhere"):
        Toolbox(["nowhere:thing"], 10, None)


async def test_requested_tool_that_cannot_start_ends_the_start(by_hand, specs, tmp_path):
    with pytest.raises(UserError, match=r"Install the database\."):
        async with by_hand(tools=(f"{tmp_path}/tools.py:Broken",)):
            pass


async def test_registered_tool_that_cannot_start_fails_its_calls(by_hand, specs, tmp_path, monkeypatch):
    (tmp_path / "tools.py").rename(tmp_path / "registered_tools.py")
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "agentloop.tools", broken="registered_tools:Broken")
    async with by_hand() as (client, _):
        response = await client.post("/v1/tools/broken/call", json={})
        assert response.status_code == 501
        assert "Install the database." in response.json()["detail"]


def test_requested_code_interpreter_takes_no_other_sandbox():
    with pytest.raises(UserError, match="--isolation"):
        Toolbox(['code_interpreter={"sandbox": "none"}'], 10, None)


def test_unusable_or_duplicate_registered_tools_are_skipped(tmp_path, monkeypatch):
    (tmp_path / "taken_tools.py").write_text(
        "from agentloop import tool\n"
        "@tool(name='code_interpreter')\ndef second(code: str) -> str: return code\n"
        "@tool\ndef fine(code: str) -> str: return code\n"
        "def untyped(code): return code\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "agentloop.tools", **{name: f"taken_tools:{name}" for name in ("fine", "second", "untyped")})
    tools = Toolbox([], 10, None).toolset.tools
    assert "fine" in tools
    assert "untyped" not in tools
    assert isinstance(tools["code_interpreter"], CodeInterpreter)


@pytest.mark.parametrize("name", ["sql_query", "web_fetch"])
def test_tools_that_reach_the_host_are_offered_only_by_name(name):
    assert name not in Toolbox([], 10, None).toolset.tools
    assert name in Toolbox([name], 10, None).toolset.tools


@pytest.mark.parametrize("name", ["bash", "edit", "terminal"])
def test_tools_that_need_the_box_of_an_episode_are_refused(name):
    with pytest.raises(UserError, match=f"--tool {name} works only in the box of an episode"):
        Toolbox([name], 10, None)


async def test_call_of_a_tool_for_boxes_does_not_suggest_to_start_it(by_hand):
    async with by_hand() as (client, _):
        response = await client.post("/v1/tools/bash/call", json={})
        assert response.status_code == 404
        assert response.json()["detail"].startswith("The tool 'bash' works only in the box of an episode")
