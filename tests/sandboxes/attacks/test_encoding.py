"""Bytes of every kind as code, input and output: data, never a failure of the sandbox."""

import json

import pytest

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"a\0b", "a\0b"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        ("😀é\u202e\ufeff".encode(), "😀é\u202e\ufeff"),
        (b"\x1b[31mred\x1b[0m\x07\x08", "\x1b[31mred\x1b[0m\x07\x08"),
        (b"a\r\nb\rc\n", "a\r\nb\rc\n"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"x" * 1_000_000, "x" * 1_000_000),
    ],
)
async def test_any_output_is_returned(box, written, shown):
    code = "import sys\ndata = sys.stdin.buffer.read()\nsys.stdout.buffer.write(data); sys.stderr.buffer.write(data)"
    result = await box.run(code, stdin=written)
    assert (result.stdout, result.stderr, result.return_code) == (shown, shown, 0)
    json.dumps(result.stdout, allow_nan=False).encode()


async def test_character_split_by_the_output_limit_is_handled(box):
    result = await box.run("print('é' * 1000)", output_bytes=1001)
    assert result.stdout.startswith("é" * 500)
    assert result.output_truncated
    assert result.return_code == 0


async def test_printed_lone_surrogate_is_handled(box):
    result = await box.run("print('\\ud800')")
    assert result.return_code == 1
    assert "UnicodeEncodeError" in result.stderr


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("print(1)\0", "SyntaxError: source code cannot contain null bytes"),
        ("x = '\ud800'", "SyntaxError: (unicode error) 'utf-8' codec can't decode"),
        ("\tprint(1)", "IndentationError"),
        ("# coding: nonsense\nprint(1)", "SyntaxError"),
        ("(" * 500, "SyntaxError"),
        ("-" * 200_000 + "1", "Error"),
    ],
)
async def test_code_that_is_not_a_program_fails_cleanly(box, code, error):
    result = await box.run(code)
    assert result.return_code in (1, 139)
    assert error in result.stderr or result.return_code == 139
    assert "agentloop" not in result.stderr


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("\ufeffprint('bom')", "bom\n"),
        ("print('a')\r\nprint('b')\r\n", "a\nb\n"),
        ("print('a')\rprint('b')", "a\nb\n"),
        ("if True:\n\tprint('tab')", "tab\n"),
        ("# -*- coding: latin-1 -*-\nprint('cookie')", "cookie\n"),
        ("#!/usr/bin/perl\nprint('é 😀 \\u202e')", "é 😀 \u202e\n"),
        ("x = '" + "y" * 1_000_000 + "'\nprint(len(x))", "1000000\n"),
        ("", ""),
        ("\n" * 100_000, ""),
    ],
)
async def test_any_python_code_gets_a_result(box, code, stdout):
    assert (await box.run(code)).stdout == stdout


async def test_any_bash_code_gets_a_result(box):
    result = await box.run("printf '\\377\\000x\\n'; echo é 😀", language="bash")
    assert result.stdout == "\ufffd\0x\né 😀\n"
    assert (await box.run("if", language="bash")).return_code == 2


@pytest.mark.parametrize(
    ("stdin", "shown"),
    [(None, "''"), ("", "''"), ("one\ntwo", "'one\\ntwo'"), ("å😀\r\n", "'å😀\\r\\n'"), ("\0", "'\\x00'")],
)
async def test_any_input_reaches_the_program(box, stdin, shown):
    result = await box.run("import sys; print(repr(sys.stdin.read()), sys.stdin.isatty())", stdin=stdin)
    assert result.stdout == f"{shown} False\n"


@pytest.mark.parametrize("stdin", [None, ""])
async def test_empty_stdin_raises_eof(box, stdin):
    result = await box.run("input()", stdin=stdin)
    assert result.stderr.endswith("EOFError: EOF when reading a line\n")
    assert result.return_code == 1


async def test_large_input_may_be_read_late_unread_or_closed(box):
    big = "x" * 2_000_000
    for code, shown in (
        ("import sys; print(len(sys.stdin.read()))", "2000000\n"),
        ("print('unread')", "unread\n"),
        ("import os; os.close(0); print('closed')", "closed\n"),
        ("import time; time.sleep(0.3); print(len(input()))", "2000000\n"),
    ):
        result = await box.run(code, stdin=big)
        assert (result.stdout, result.stderr) == (shown, "")


async def test_no_stream_is_a_terminal(box):
    code = "import os; print([os.isatty(fd) for fd in (0, 1, 2)])"
    assert (await box.run(code)).stdout == "[False, False, False]\n"
