import asyncio
import time

import pytest

from agentloop.errors import FailureKind, UserError
from agentloop.messages import ToolCall
from agentloop.tools.base import ToolResult
from agentloop.tools.code_interpreter import CodeInterpreter, strip_fence
from agentloop.tools.toolset import Toolset


async def interpret(*codes: str, seconds: float = 60.0, **options) -> list[ToolResult]:
    toolset = Toolset([CodeInterpreter(**options)])
    await toolset.start()
    try:
        sessions = toolset.sessions("t", {}, 0)
        calls = [ToolCall("code_interpreter", {"code": code}, f"call_{index}") for index, code in enumerate(codes)]
        return await asyncio.gather(*[sessions.call(call, time.monotonic() + seconds) for call in calls])
    finally:
        await toolset.shutdown()


def test_what_the_model_is_shown():
    (schema,) = Toolset([CodeInterpreter()]).schemas
    assert schema["function"]["name"] == "code_interpreter"
    assert schema["function"]["parameters"]["properties"] == {
        "code": {"type": "string", "description": "Python code to run"}
    }


async def test_feedback():
    codes = {
        "print('hi')\n2 ** 10": "hi\n1024",
        "x = 1": "[no output]",
        "```python\nprint(3)\n```": "3",
        "def f():\n    return 1 / 0\nf()": None,
        "x = (": "  File \"main.py\", line 1\n    x = (\n        ^\nSyntaxError: '(' was never closed",
        "import sys; sys.exit(3)": "[exit code 3]",
        "import os; os.kill(os.getpid(), 11)": "[killed by signal 11]",
        "print('x' * 100_000)": "x" * 32768 + "\n[output cut]",
        "def f(n): return f(n + 1)\nf(0)": None,
    }
    results = dict(zip(codes, await interpret(*codes), strict=True))
    for code, content in codes.items():
        if content is not None:
            assert results[code].content == content
        assert results[code].failure is None
    assert [result.is_error for result in results.values()] == [
        False,
        False,
        False,
        True,
        True,
        True,
        True,
        False,
        True,
    ]
    traceback = results["def f():\n    return 1 / 0\nf()"].content
    assert traceback.startswith('Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n    f()')
    assert traceback.endswith("ZeroDivisionError: division by zero")
    recursion = results["def f(n): return f(n + 1)\nf(0)"].content.splitlines()
    assert len(recursion) == 13
    assert recursion[0] == "..."
    assert recursion[-1].startswith("RecursionError")


async def test_time_runs_out_with_what_was_printed():
    (result,) = await interpret("print('partial')\nwhile True: pass", timeout=0.5)
    assert result.content == "partial\n[timed out after 0.5 s]"
    assert result.is_error
    assert result.failure is None
    assert result.metrics["timed_out"] == 1.0


async def test_memory_runs_out():
    (result,) = await interpret("x = bytearray(1 << 30)", memory_mb=256)
    assert result.content.endswith("MemoryError\n[out of memory]")


async def test_nothing_is_kept_between_calls():
    results = await interpret("x = 1; open('left', 'w')", "import os; print(os.path.exists('left'), 'x' in globals())")
    assert results[1].content == "False False"


async def test_code_must_be_a_string():
    (result,) = await interpret(7)  # type: ignore[arg-type]
    assert result.failure is FailureKind.MODEL


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print(1)", "print(1)"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("```py\na\nb\n```\n", "a\nb"),
        ("\n```\nprint(1)```", "print(1)"),
        ("```Python  \nx\n```", "x"),
        ("```python\n```", ""),
        ("print('''```python\nx\n```''')", "print('''```python\nx\n```''')"),
        ("Text\n```python\nx\n```", "Text\n```python\nx\n```"),
    ],
)
def test_fences(text, code):
    assert strip_fence(text) == code


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sandbox": "http://localhost:8080"}, "tools serve"),
        ({"sandbox": "bubblewarp"}, "Did you mean 'bubblewrap'"),
        ({"timeout": -1}, "timeout of an execution must be above 0"),
        ({"packages": ["no-such-package"]}, "not installed"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        CodeInterpreter(**options)


async def test_without_bubblewrap_the_start_fails(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="apt-get install bubblewrap"):
        await Toolset([CodeInterpreter()]).start()
