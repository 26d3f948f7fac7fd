import threading
import time
from typing import Annotated, Any

import pytest

from agentloop import Tool, ToolContext, ToolResult, tool
from agentloop.errors import FailureKind, UserError
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall


async def run(made, arguments, seconds=10.0) -> ToolResult:
    sessions = Toolset([made]).sessions("t", {"question": "?"}, seed=1)
    return await sessions.call(ToolCall(made.name, arguments, "call_0"), time.monotonic() + seconds)


@tool
def add(a: int, b: Annotated[int, "the second"] = 1) -> str:
    """Add two numbers.

    Args:
        a: the first
    """
    return f"{a + b} {threading.current_thread().name.partition('_')[0]}"


def test_decorated_function_is_a_tool_and_stays_callable():
    assert add(1, 2).startswith("3")
    assert Toolset([add]).schemas == [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Add two numbers.",
                "parameters": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "a": {"type": "integer", "description": "the first"},
                        "b": {"type": "integer", "description": "the second", "default": 1},
                    },
                    "required": ["a"],
                },
            },
        }
    ]


async def test_sync_functions_run_in_a_thread_unless_inline():
    assert (await run(add, {"a": 1})).content == "2 agentloop-tool"
    inline = tool(inline=True)(add.function)
    assert (await run(inline, {"a": 1})).content == "2 MainThread"


async def test_slow_sync_function_times_out_without_blocking():
    @tool(timeout=0.05)
    def slow() -> str:
        """Sleep."""
        time.sleep(0.3)
        return "late"

    result = await run(slow, {})
    assert result.failure is FailureKind.TOOL
    assert result.content == "The call took longer than the 0.05 s that it had."


@pytest.mark.parametrize("timeout", ["5", 0, -1, True, float("nan")])
def test_a_timeout_that_is_no_number_above_0_is_refused(timeout):
    @tool(timeout=timeout)
    def wait() -> str:
        """Wait."""
        return "done"

    with pytest.raises(
        UserError, match=f"timeout of the tool 'wait' must be a number of seconds above 0, got {timeout!r}"
    ):
        Toolset([wait])


def test_a_class_with_a_wrong_timeout_is_refused():
    class Wait(Tool):
        """Wait."""

        timeout = "5"  # type: ignore[assignment]

        async def call(self, ctx: ToolContext) -> str:
            return "done"

    with pytest.raises(UserError, match="timeout of the tool 'wait' must be a number of seconds above 0, got '5'"):
        Toolset([Wait()])


def test_a_timeout_may_be_infinite():
    @tool(timeout=float("inf"))
    def wait() -> str:
        """Wait."""
        return "done"

    assert list(Toolset([wait]).tools) == ["wait"]


async def test_context_is_the_first_parameter():
    @tool(name="ask")
    async def named_otherwise(ctx: ToolContext, word: str) -> str:
        """Ask."""
        return f"{ctx.task['question']} {word} {ctx.trajectory_id} {ctx.seconds_left > 1}"

    assert named_otherwise.name == "ask"
    assert list(Toolset([named_otherwise]).schemas[0]["function"]["parameters"]["properties"]) == ["word"]
    assert (await run(named_otherwise, {"word": "x"})).content == "? x t True"


@pytest.mark.parametrize("name", ["self", "ctx"])
async def test_parameters_may_have_the_names_of_our_own(name):
    namespace: dict[str, Any] = {}
    exec(f"def echo(word: str, {name}: str) -> str: return word + {name}", namespace)
    assert (await run(tool(namespace["echo"]), {"word": "a", name: "b"})).content == "ab"


async def test_exception_in_a_thread_becomes_the_result():
    @tool
    def broken() -> str:
        """Break."""
        raise SystemExit("out")

    assert (await run(broken, {})).content == "RuntimeError: it called sys.exit('out')"
