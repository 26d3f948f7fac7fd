"""Servers that misbehave: an error that says so, at the start or as a failure of one call."""

import asyncio
import gc
import math
import sys

import pytest

from agentloop.errors import UserError
from agentloop.tools.mcp.protocol import McpError
from agentloop.tools.mcp.server import McpServer
from agentloop.tools.mcp.stdio import StdioTransport
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall

pytestmark = pytest.mark.slow

SERVER = """
import json, sys

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

for line in sys.stdin:
    message = json.loads(line)
    def answer(**content):
        send(id=message["id"], **content)
    if message.get("method") == "initialize":
        print("a banner that is not JSON", flush=True)
        send(id="s1", method="ping")
        send(id="s2", method="sampling/createMessage", params={})
        about = {"serverInfo": {"name": "x", "version": "1"}, "capabilities": {}}
        answer(result={"protocolVersion": "2025-06-18", **about})
    elif message.get("method") == "tools/list":
        LISTING
    elif message.get("method") == "tools/call":
        answer(result=CALLED)
"""


def tools_of(listing: str, *, called: str = "None", **options):
    code = SERVER.replace("LISTING", listing).replace("CALLED", called)
    return McpServer([sys.executable, "-c", code], timeout=10, **options).tools()


ONE = 'answer(result={"tools": [{"name": "a", "inputSchema": None}]})'
IMAGE = '{"type": "image", "mimeType": "image/png", "data": None}'


@pytest.mark.parametrize(
    ("called", "content"),
    [
        ('{"content": [], "structuredContent": {"sum": 3}}', '{"sum": 3}'),
        ('{"structuredContent": ["é"]}', '["é"]'),
        ('{"content": [{"type": "text", "text": "3"}], "structuredContent": {"sum": 3}}', "3"),
        ('{"content": None}', ""),
        ("{}", ""),
        ('{"content": [{"type": "text", "text": None}]}', ""),
    ],
)
async def test_results_with_little_content_are_read(called, content):
    sessions = Toolset(tools_of(ONE, called=called)).sessions("t", task={}, seed=0)
    result = await sessions.call(ToolCall("a", {}, "call_0"), math.inf)
    assert (result.content, result.is_error) == (content, False)
    await sessions.close()


@pytest.mark.parametrize(
    ("called", "message"),
    [
        ('{"content": "hello"}', "the answer to tools/call has the content str 'hello', which is not a list"),
        ('{"content": [' + IMAGE + "]}", "an image that cannot be shown: The image has an unknown format"),
    ],
)
async def test_malformed_results_are_explained(called, message):
    sessions = Toolset(tools_of(ONE, called=called)).sessions("t", task={}, seed=0)
    assert message in (await sessions.call(ToolCall("a", {}, "call_0"), math.inf)).content
    await sessions.close()


def test_a_server_without_tools_has_an_empty_list():
    assert tools_of('answer(result={"tools": None})') == tools_of("answer(result={})") == []


def test_pages_and_noise_are_handled():
    listing = """
        cursor = message["params"].get("cursor")
        page = {"tools": [{"name": "b" if cursor else "a", "inputSchema": {"type": "object"}}]}
        answer(result=page if cursor else {**page, "nextCursor": "2"})
    """
    assert [tool.name for tool in tools_of(listing.strip())] == ["a", "b"]


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        ('answer(error={"code": -32601, "message": "no tools here"})', "no tools here"),
        ("answer(result=[])", "has no result"),
        ("sys.exit(1)", "exited"),
        ('sys.exit("needs a key")', "exited: needs a key"),
        ('answer(result={"tools": [], "nextCursor": "again"})', "more than 100 pages"),
        (
            'answer(result={"tools": [{"name": "a", "inputSchema": {"type": "nonsense"}}]})',
            r"the tool 'a' of the MCP server .* is not a valid JSON Schema: .* leave the tool out",
        ),
        (
            'answer(result={"tools": [{"name": "a", "inputSchema": {"$ref": "#/$defs/B"}}]})',
            "refers to '#/[$]defs/B', which does not exist",
        ),
        ('answer(result={"tools": {"a": {}}})', "not usable: the answer to tools/list has dict .*not a list of tools"),
        ('answer(result={"tools": [{"inputSchema": {}}]})', "not usable: its list of tools has dict .*with a name"),
        ('answer(result={"tools": [{"name": ""}]})', "not usable: its list of tools has dict .*with a name"),
        ('answer(result={"tools": ["a"]})', "not usable: its list of tools has str 'a'"),
        (
            'answer(result={"tools": [{"name": "a", "inputSchema": []}]})',
            "not usable: the inputSchema of its tool 'a' is not an object",
        ),
    ],
)
def test_unusable_server_is_named(listing, message):
    with pytest.raises(UserError, match=f"(?s){message}"):
        tools_of(listing)


def test_silent_server_times_out():
    with pytest.raises(UserError, match="no answer in 1 s"):
        McpServer([sys.executable, "-c", "import time; time.sleep(60)"], timeout=1.0).tools()


def test_unreachable_servers_and_invalid_options_raise(tmp_path):
    with pytest.raises(UserError, match="no-such-program cannot be started"):
        McpServer("no-such-program --flag").tools()
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:1/mcp cannot be reached"):
        McpServer(url="http://127.0.0.1:1/mcp").tools()
    with pytest.raises(UserError, match="command or url"):
        McpServer()
    with pytest.raises(UserError, match="command or url"):
        McpServer("x", url="http://y")
    for empty in ("", []):
        with pytest.raises(UserError, match="command of an MCP server is empty"):
            McpServer(empty)
    with pytest.raises(UserError, match=r"'X-Name' .* outside ASCII"):
        McpServer(url="http://y", headers={"X-Name": "Zoë"})
    with pytest.raises(UserError, match=r"its folder .*nowhere cannot be used: No such file"):
        McpServer(sys.executable, folder=str(tmp_path / "nowhere")).tools()


def test_servers_with_the_same_tool_name_need_a_prefix():
    listing = 'answer(result={"tools": [{"name": "a", "inputSchema": {"type": "object"}}]})'
    with pytest.raises(UserError, match=r"Two tools have the name 'a': .* option `prefix` of an MCP server"):
        Toolset([*tools_of(listing), *tools_of(listing)])
    assert set(Toolset([*tools_of(listing), *tools_of(listing, prefix="b_")]).tools) == {"a", "b_a"}


def test_last_output_of_a_crashed_server_is_reported():
    with pytest.raises(UserError, match=r"exited: .*can't open file .*nothing.py"):
        McpServer([sys.executable, "nothing.py"], timeout=10).tools()


TASKS = """
        schema = {"type": "object", "properties": {}}
        support = {"plain": None, "maybe": "optional", "never": "forbidden", "always": "required"}
        tools = [{"name": name, "inputSchema": schema} for name in support]
        for each in tools:
            if support[each["name"]]:
                each["execution"] = {"taskSupport": support[each["name"]]}
        answer(result={"tools": tools})
"""


def test_tools_that_require_tasks_are_not_offered():
    """Plain calls of them are an error: https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/tasks"""
    assert [tool.name for tool in tools_of(TASKS)] == ["plain", "maybe", "never"]
    with pytest.raises(UserError, match=r"(?s)'always' .* runs only as a task"):
        tools_of(TASKS, include=["plain", "always"])


async def test_a_server_that_exits_before_the_first_message_is_one_error():
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    server = StdioTransport(["sh", "-c", "sleep 0.7 > /dev/null & exit 1"], {}, None)  # stderr is open for longer
    await server.open()
    await asyncio.sleep(0.3)
    with pytest.raises(McpError, match="the server sh exited"):
        await server.request({"jsonrpc": "2.0", "id": 1, "method": "initialize"}, lambda message: None)
    await server.close()
    gc.collect()
    assert reported == []
