"""Results of harmless code."""

import asyncio

import pytest

from agentloop.errors import UserError
from agentloop.sandboxes.interface.sandbox import MAX_FILES, Execution, ExecutionResult, Sandbox
from agentloop.sandboxes.levels.slots import Slots

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


async def run(sandbox: Sandbox, code: str, **options) -> ExecutionResult:
    return await sandbox.run(Execution(code=code, **{"timeout": 20.0, **options}))


async def test_output_and_exit_code_are_returned(sandbox):
    result = await run(sandbox, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (result.stdout, result.stderr, result.return_code) == ("out\n", "err\n", 3)
    assert not result.ok
    assert not result.timed_out
    assert not result.output_truncated
    assert 0 < result.seconds < 20


@pytest.mark.parametrize(
    ("code", "return_code"),
    [
        ("pass", 0),
        ("exit()", 0),
        ("raise SystemExit(7)", 7),
        ("import sys; sys.exit('why')", 1),
        ("import sys; sys.exit(256 + 5)", 5),
        ("import os; os._exit(4)", 4),
        ("import os; os.abort()", 134),
        ("import os; os.kill(os.getpid(), 15)", 143),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import ctypes; ctypes.string_at(0)", 139),
    ],
)
async def test_exit_codes_and_signals_are_reported(sandbox, code, return_code):
    result = await run(sandbox, code)
    assert result.return_code == return_code
    assert result.signal == (return_code - 128 if return_code > 128 else None)


async def test_traceback_matches_a_run_from_a_file(sandbox):
    result = await run(sandbox, "def f():\n    1 / 0\n\nf()\n")
    assert result.return_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1:3] == ['  File "main.py", line 4, in <module>', "    f()"]
    assert '  File "main.py", line 2, in f' in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert result.stderr.count("File ") == 2


async def test_syntax_error_has_no_harness_frames(sandbox):
    result = await run(sandbox, "x = 1\ny = (\n")
    assert result.return_code == 1
    assert result.stderr.startswith('  File "main.py", line 2')
    assert result.stderr.endswith("SyntaxError: '(' was never closed\n")


async def test_chained_exceptions_keep_both_tracebacks(sandbox):
    result = await run(sandbox, "try:\n    1 / 0\nexcept ZeroDivisionError:\n    [][1]\n")
    assert "ZeroDivisionError: division by zero" in result.stderr
    assert "IndexError: list index out of range" in result.stderr
    assert "<string>" not in result.stderr


async def test_code_runs_as_the_main_module(sandbox):
    code = """
        import os, sys
        print(__name__, __file__, sys.argv, os.getcwd(), [name for name in globals() if name[:2] != "__"])
        import helper
        from multiprocessing import Pool
        def double(x): return 2 * x
        if __name__ == "__main__":
            with Pool(2) as pool:
                print(helper.VALUE, pool.map(double, [1, 2]))
    """
    lines = [line[8:] for line in code.splitlines()]
    result = await run(sandbox, "\n".join(lines), files={"helper.py": b"VALUE = 'imported'"})
    assert result.stderr == ""
    assert result.stdout == "__main__ main.py ['main.py'] /tmp/work ['os', 'sys']\nimported [2, 4]\n"


@pytest.mark.parametrize("stdin", [None, "", "one\ntwo", "å😀\r\n"])
async def test_stdin_is_passed(sandbox, stdin):
    result = await run(sandbox, "import sys; print(ascii(sys.stdin.read()), sys.stdin.isatty())", stdin=stdin)
    assert result.stdout == f"{stdin or ''!a} False\n"


async def test_binary_stdin_is_passed(sandbox):
    result = await run(sandbox, "import sys; print(sys.stdin.buffer.read())", stdin=b"\xff\x00")
    assert result.stdout == "b'\\xff\\x00'\n"


async def test_input_at_end_of_stdin_raises_eof(sandbox):
    result = await run(sandbox, "print(input())\ninput()", stdin="first")
    assert result.stdout == "first\n"
    assert result.stderr.endswith("EOFError: EOF when reading a line\n")


async def test_large_stdin_may_be_read_or_unread(sandbox):
    big = "x" * 2_000_000
    assert (await run(sandbox, "import sys; print(len(sys.stdin.read()))", stdin=big)).stdout == "2000000\n"
    assert (await run(sandbox, "print('unread')", stdin=big)).stdout == "unread\n"


async def test_files_are_placed_in_the_working_directory(sandbox):
    files = {"data/a.bin": bytes(range(256)), "./b.txt": "é".encode(), "empty": b"", "./main.py": b"not this"}
    code = "print(len(open('data/a.bin', 'rb').read()), open('b.txt').read(), repr(open('empty').read()))"
    assert (await run(sandbox, code, files=files)).stdout == "256 é ''\n"


async def test_many_files_are_accepted(sandbox):
    files = {f"f{index}": str(index).encode() for index in range(MAX_FILES)}
    code = "import os; print(sum(int(open(n).read()) for n in os.listdir() if n != 'main.py'))"
    assert (await run(sandbox, code, files=files)).stdout == f"{sum(range(MAX_FILES))}\n"
    with pytest.raises(UserError, match=f"At most {MAX_FILES}"):
        Execution(code="", files={**files, "one_more": b""})


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("1 + 1", "2\n"),
        ("x = 3\nx", "3\n"),
        ("'text'", "'text'\n"),
        ("None", ""),
        ("x = 3", ""),
        ("print('a')", "a\n"),
        ("for i in range(2):\n    i", ""),
        ("", ""),
        ("# only a comment", ""),
        ("1; 2  # the last of the line", "2\n"),
        ("(\n  'a'\n  'b'\n)", "'ab'\n"),
        ("from __future__ import annotations\ndef f(x: Later): pass\nf.__annotations__", "{'x': 'Later'}\n"),
    ],
)
async def test_echo_shows_the_last_expression(sandbox, code, stdout):
    result = await run(sandbox, code, echo=True)
    assert (result.stdout, result.stderr, result.return_code) == (stdout, "", 0)


async def test_echo_keeps_traceback_line_numbers(sandbox):
    result = await run(sandbox, "x = 0\n\n1 / x", echo=True)
    assert result.stderr.splitlines()[1:3] == ['  File "main.py", line 3, in <module>', "    1 / x"]


async def test_output_is_unchanged_without_echo(sandbox):
    assert (await run(sandbox, "1 + 1")).stdout == ""


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("print(1)\0", "SyntaxError: source code cannot contain null bytes"),
        ("x = '\ud800'", "SyntaxError: (unicode error) 'utf-8' codec can't decode"),
        ("\tprint(1)", "IndentationError"),
    ],
)
async def test_code_that_is_not_text_is_a_syntax_error(sandbox, code, error):
    result = await run(sandbox, code)
    assert result.return_code == 1
    assert error in result.stderr


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("\ufeffprint('bom')", "bom\n"),
        ("print('a')\r\nprint('b')\r\n", "a\nb\n"),
        ("# -*- coding: latin-1 -*-\nprint('cookie')", "cookie\n"),
        ("#!/usr/bin/perl\nprint('é 😀 \\u202e')", "é 😀 \u202e\n"),
        ("x = '" + "y" * 1_000_000 + "'\nprint(len(x))", "1000000\n"),
    ],
)
async def test_any_code_gets_a_result(sandbox, code, stdout):
    assert (await run(sandbox, code)).stdout == stdout


async def test_binary_output_is_replaced(sandbox):
    result = await run(sandbox, "import sys; sys.stdout.buffer.write(b'a\\xff\\x00\\xf0\\x9f\\x98\\x80\\r\\n')")
    assert result.stdout == "a\ufffd\x00😀\r\n"


async def test_set_order_is_deterministic(sandbox):
    code = "print({str(i) for i in range(50)})"
    assert (await run(sandbox, code)).stdout == (await run(sandbox, code)).stdout


async def test_bash_code_runs(sandbox):
    code = 'read line; echo "$line in $PWD"; cat data; exit 5'
    result = await run(sandbox, code, language="bash", stdin="hello\n", files={"data": b"from a file\n"})
    assert (result.stdout, result.return_code) == ("hello in /tmp/work\nfrom a file\n", 5)


async def test_requested_packages_are_available(sandbox):
    code = "import numpy; print(numpy.ones((500, 500)).dot(numpy.ones((500, 500))).sum())"
    assert "ModuleNotFoundError" in (await run(sandbox, code)).stderr
    with_numpy = Slots(packages=["numpy"])
    try:
        assert (await run(with_numpy, code)).stdout == "125000000.0\n"
        result = await run(with_numpy, "import numpy; numpy.ones(600 << 17)", memory_mb=256)
        assert result.return_code == 1
        assert result.oom
    finally:
        await with_numpy.close()


async def test_timeout_starts_with_the_code_not_in_the_queue(sandbox):
    slow = [run(sandbox, "import time; time.sleep(1); print('done')", timeout=3.5) for _ in range(20)]
    results = await asyncio.gather(*slow)  # four at a time: the last ones wait for more than their time
    assert [result.stdout for result in results] == ["done\n"] * 20
    assert not any(result.timed_out for result in results)


async def test_event_loop_stays_responsive(sandbox):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await run(sandbox, "import time; time.sleep(2)")
    ticking.cancel()
    assert ticks > 20
