import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from agentloop.errors import FailureKind, UserError
from agentloop.tools.base import ToolResult
from agentloop.tools.code_interpreter import CodeInterpreter, strip_fence
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def daemon() -> Iterator[str]:
    """The address of a sandbox daemon."""
    command = [sys.executable, "-m", "agentloop.tools", "serve", "--port", "0", "--isolation", "slots"]
    command += ["--packages", "matplotlib"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        printed = ""
        while not (address := re.search(r"http://127\.0\.0\.1:\d+", printed)):
            line = process.stdout.readline()
            assert line, f"The daemon ended: {printed}"
            printed += line
        yield address[0]
        process.kill()


async def interpret(*codes: str, seconds: float = 60.0, **options) -> list[ToolResult]:
    toolset = Toolset([CodeInterpreter(**options)])
    await toolset.start()
    try:
        sessions = toolset.sessions("t", {}, 0)
        calls = [ToolCall("code_interpreter", {"code": code}, f"call_{index}") for index, code in enumerate(codes)]
        return await asyncio.gather(*[sessions.call(call, time.monotonic() + seconds) for call in calls])
    finally:
        await toolset.shutdown()


def test_execution_output_is_formatted_for_the_model():
    (schema,) = Toolset([CodeInterpreter()]).schemas
    assert schema["function"]["name"] == "code_interpreter"
    assert schema["function"]["parameters"]["properties"] == {
        "code": {"type": "string", "description": "Python code to run"}
    }


@pytest.mark.parametrize("where", ["local", "daemon"])
async def test_failures_give_feedback(where, request):
    sandbox = request.getfixturevalue("daemon") if where == "daemon" else "local"
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
    results = dict(zip(codes, await interpret(*codes, sandbox=sandbox), strict=True))
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


async def test_timeout_keeps_printed_output():
    (result,) = await interpret("print('partial')\nwhile True: pass", timeout=0.5)
    assert result.content == "partial\n[timed out after 0.5 s]"
    assert result.is_error
    assert result.failure is None
    assert result.metrics["timed_out"] == 1.0


async def test_out_of_memory_is_reported():
    (result,) = await interpret("x = bytearray(1 << 30)", memory_mb=256)
    assert result.content.endswith("MemoryError\n[out of memory]")


async def test_calls_share_no_state():
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
def test_code_fences_are_stripped(text, code):
    assert strip_fence(text) == code


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sandbox": "http://localhost:8080", "disk_mb": 1}, r"disk_mb.*set the others in `agentloop tools serve`"),
        ({"sandbox": "http://"}, "must be the address of a daemon"),
        ({"timout": 5}, r"^The tool 'code_interpreter' has no option 'timout'\. Did you mean 'timeout'"),
        ({"sandbox": "http://localhost:8080", "tokn": "x"}, r"'code_interpreter' has no option 'tokn'.*'token'"),
        ({"sandbox": "slots", "disk": 5}, r"'code_interpreter' has no option 'disk'\. Did you mean 'disk_mb'"),
        ({"sandbox": "slots", "image": "x"}, r"The sandbox level 'slots' has no option 'image'"),
        ({"sandbox": "bubblewarp"}, "Did you mean 'bubblewrap'"),
        ({"timeout": -1}, "timeout must be a finite number above 0"),
        ({"packages": ["no-such-package"]}, "not installed"),
    ],
)
def test_invalid_options_raise_user_error(options, message):
    with pytest.raises(UserError, match=message):
        CodeInterpreter(**options)


@pytest.mark.parametrize("stateful", [False, True])
async def test_options_that_the_daemon_rejects_fail_at_start(daemon, stateful):
    interpreter = CodeInterpreter(daemon, stateful=stateful, memory_mb=1 << 20)
    with pytest.raises(UserError, match=r"memory.*max-memory-mb"):
        await Toolset([interpreter]).start()


async def test_start_fails_without_bubblewrap(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="apt-get install bubblewrap"):
        await Toolset([CodeInterpreter("bubblewrap")]).start()


NOTEBOOK = {"sandbox": "slots", "stateful": True}


@pytest.fixture(params=["slots", "bubblewrap", "daemon"])
def notebook(request) -> dict:
    """Options of a notebook, in each of the places where it can be."""
    place = request.getfixturevalue("daemon") if request.param == "daemon" else request.param
    return {"sandbox": place, "stateful": True}


async def test_notebook_output_is_formatted_for_the_model():
    (schema,) = Toolset([CodeInterpreter(**NOTEBOOK)]).schemas
    assert "kept for the next call" in schema["function"]["description"]
    assert "Nothing is kept" in CodeInterpreter().description


async def run_cells(*cells: str, **options) -> list[ToolResult]:
    """The cells of one trajectory, one after the other."""
    toolset = Toolset([CodeInterpreter(**{**NOTEBOOK, **options})])
    await toolset.start()
    try:
        sessions = toolset.sessions("t", {}, 0)
        calls = [ToolCall("code_interpreter", {"code": code}, "call_0") for code in cells]
        results = [await sessions.call(call, time.monotonic() + 60) for call in calls]
        assert await sessions.close() == []
        return results
    finally:
        await toolset.shutdown()


async def test_notebook_keeps_definitions_between_cells(notebook):
    results = await run_cells(
        "import math\nx = 41\nopen('kept', 'w').write('text')",
        "```python\nx + 1\n```",
        "print(math.floor(2.5), open('kept').read())\n'echo'",
        "x = 1",
        "def f():\n    return 1 / 0\n\nf()",
        "x = (",
        "x",
        **notebook,
    )
    assert [result.content for result in results[:4]] == ["4", "42", "2 text\n'echo'", "[no output]"]
    assert results[4].content.startswith("Traceback (most recent call last):")
    assert "line 4, in <module>\n    f()" in results[4].content
    assert results[4].content.endswith("ZeroDivisionError: division by zero")
    assert results[5].content.endswith("SyntaxError: '(' was never closed")
    assert results[6].content == "1"
    assert [result.is_error for result in results] == [False, False, False, False, True, True, False]
    assert not any(result.failure for result in results)
    assert results[0].metrics.keys() == {"seconds", "timed_out", "ok"}


async def test_notebooks_of_two_trajectories_are_isolated():
    toolset = Toolset([CodeInterpreter(**NOTEBOOK)])
    await toolset.start()
    one, two = (toolset.sessions(name, {}, 0) for name in "ab")

    async def cell(sessions, code):
        return await sessions.call(ToolCall("code_interpreter", {"code": code}, "call_0"), time.monotonic() + 60)

    await cell(one, "x = 1; open('left', 'w')")
    result = await cell(two, "import os; print(os.path.exists('left'), 'x' in globals())")
    assert result.content == "False False"
    (interpreter,) = toolset.tools.values()
    assert interpreter.sandbox.load().sessions == 2
    await one.close()
    await two.close()
    assert interpreter.sandbox.load().sessions == 0
    await toolset.shutdown()


async def test_call_waits_for_a_free_session():
    toolset = Toolset([CodeInterpreter(**NOTEBOOK, max_sessions=1)])
    await toolset.start()
    one, two = (toolset.sessions(name, {}, 0) for name in "ab")
    call = ToolCall("code_interpreter", {"code": "1"}, "call_0")
    assert (await one.call(call, time.monotonic() + 60)).content == "1"
    late = await two.call(call, time.monotonic() + 0.3)
    assert late.failure is FailureKind.TOOL
    waiting = asyncio.create_task(two.call(call, time.monotonic() + 60))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await one.close()
    assert (await waiting).content == "1"
    await two.close()
    await toolset.shutdown()


async def test_calls_of_one_turn_run_in_order():
    toolset = Toolset([CodeInterpreter(**NOTEBOOK)])
    await toolset.start()
    sessions = toolset.sessions("t", {}, 0)
    codes = ["x = [0]", *[f"x.append({number}); x" for number in range(1, 5)]]
    calls = [ToolCall("code_interpreter", {"code": code}, f"call_{code}") for code in codes]
    results = await asyncio.gather(*(sessions.call(call, time.monotonic() + 60) for call in calls))
    assert [result.content for result in results[1:]] == ["[0, 1]", "[0, 1, 2]", "[0, 1, 2, 3]", "[0, 1, 2, 3, 4]"]
    await sessions.close()
    await toolset.shutdown()


async def test_slow_cell_is_interrupted_and_the_notebook_continues(notebook):
    cells = ["x = 5\nprint('partial')\nwhile True: pass", "x"]
    slow, after = await run_cells(*cells, timeout=0.5, **notebook)
    assert slow.content == "partial\n[timed out after 0.5 s]"
    assert slow.is_error
    assert slow.failure is None
    assert slow.metrics["timed_out"] == 1.0
    assert after.content == "5"


@pytest.mark.parametrize(
    ("code", "how"), [("import os; os._exit(0)", "exited"), ("import os; os.kill(os.getpid(), 9)", "was killed")]
)
async def test_ended_notebook_is_reported_and_replaced(code, how, notebook):
    _, ended, after = await run_cells("x = 5", code, "print('x' in globals())", **notebook)
    assert ended.content == f"[Python {how}: variables and files are lost, and the next call starts afresh]"
    assert ended.is_error
    assert ended.failure is None
    assert after.content == "False"


async def test_notebook_out_of_memory_is_reported(notebook):
    result, after = await run_cells("x = bytearray(1 << 30)", "1", memory_mb=256, **notebook)
    assert "[out of memory]" in result.content
    assert after.content == "1"


async def test_long_cell_output_is_truncated(notebook):
    cells = ["print('x' * 100_000)", "'y' * 100_000"]
    printed, shown = await run_cells(*cells, max_output_bytes=1000, **notebook)
    assert printed.content == "x" * 1000 + "\n[output cut]"
    assert shown.content == "'" + "y" * 999 + "\n[output cut]"


async def test_plots_are_images(notebook):
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nprint('drawn')\nplt.show()"
    (result,) = await run_cells(plot, packages=["matplotlib"], max_images=2, **notebook)
    assert [part["type"] for part in result.content] == ["text", "image"], result.content
    assert result.content[0]["text"].startswith("drawn")
    image = result.content[1]["image"]
    assert image.mode == "RGB"
    assert image.width > 100
    assert len(image.getcolors(1 << 16)) > 2
    (result,) = await run_cells(plot, packages=["matplotlib"], **notebook)
    assert result.content.endswith("[an image, not shown]")


async def test_lost_session_is_a_tool_failure_and_is_replaced():
    interpreter = CodeInterpreter(**NOTEBOOK)
    run = interpreter.sandbox.session
    opened = []

    async def session(settings):
        opened.append(await run(settings))
        return opened[-1]

    interpreter.sandbox.session = session

    async def cells():
        toolset = Toolset([interpreter])
        await toolset.start()
        sessions = toolset.sessions("t", {}, 0)
        for code in ("x = 1", "x", "print('x' in globals())"):
            if code == "x":
                await opened[-1].close()  # as when it was idle for too long
            yield await sessions.call(ToolCall("code_interpreter", {"code": code}, "call_0"), time.monotonic() + 60)
        await sessions.close()
        await toolset.shutdown()

    _, lost, after = [result async for result in cells()]
    assert lost.failure is FailureKind.TOOL
    assert lost.content.startswith("The session is over")
    assert lost.content.endswith("Variables and files are lost: the next call starts afresh.")
    assert after.content == "False"
