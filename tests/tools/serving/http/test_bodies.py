"""Invalid bodies: the answer is 4xx with the name of the field, and nothing reaches the sandbox."""

import asyncio
import contextlib
import json
import random

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agentloop.tools.serving.routes.fusion import RunCode

pytestmark = pytest.mark.slow

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
BOUNDS = {"max_seconds": 3600.0, "max_memory_mb": 16384}
FIELDS = ("code", "language", "stdin", "run_timeout", "memory_limit_MB", "files", "fetch_files", "echo", "stdin_base64")


def problem(response) -> tuple[str, str]:
    """Return the field and its problem."""
    (first, *_) = response.json()["detail"]
    return ".".join(str(part) for part in first["loc"][1:]), first["msg"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "code"),
        ({"code": None}, "code"),
        ({"code": 3}, "code"),
        ({"code": ["x"]}, "code"),
        ({"code": "x", "language": "cobol"}, "language"),
        ({"code": "x", "language": "sql"}, "language"),
        ({"code": "x", "language": None}, "language"),
        ({"code": "x", "language": 7}, "language"),
        ({"code": "x", "stdin": 5}, "stdin"),
        ({"code": "x", "stdin_base64": "%%"}, "stdin_base64"),
        ({"code": "x", "run_timeout": 0}, "run_timeout"),
        ({"code": "x", "run_timeout": -1}, "run_timeout"),
        ({"code": "x", "run_timeout": True}, "run_timeout"),
        ({"code": "x", "run_timeout": "10"}, "run_timeout"),
        ({"code": "x", "run_timeout": None}, "run_timeout"),
        ({"code": "x", "run_timeout": float("nan")}, "run_timeout"),
        ({"code": "x", "run_timeout": float("inf")}, "run_timeout"),
        ({"code": "x", "run_timeout": 3601}, "run_timeout"),
        ({"code": "x", "compile_timeout": float("-inf")}, "compile_timeout"),
        ({"code": "x", "memory_limit_MB": 0}, "memory_limit_MB"),
        ({"code": "x", "memory_limit_MB": 15}, "memory_limit_MB"),
        ({"code": "x", "memory_limit_MB": -2}, "memory_limit_MB"),
        ({"code": "x", "memory_limit_MB": True}, "memory_limit_MB"),
        ({"code": "x", "memory_limit_MB": 10**30}, "memory_limit_MB"),
        ({"code": "x", "memory_limit_MB": 16385}, "memory_limit_MB"),
        ({"code": "x", "files": []}, "files"),
        ({"code": "x", "files": {"a": 5}}, "files"),
        ({"code": "x", "files": {"a": "no base64!"}}, "files"),
        ({"code": "x", "files": {"a": "YQ"}}, "files"),
        ({"code": "x", "files": {"../../x": "YQ=="}}, "files"),
        ({"code": "x", "files": {"/etc/cron.d/x": "YQ=="}}, "files"),
        ({"code": "x", "files": {"/tmp/../etc/x": "YQ=="}}, "files"),
        ({"code": "x", "files": {"/tmp": "YQ=="}}, "files"),
        ({"code": "x", "files": {"a\0b": "YQ=="}}, "files"),
        ({"code": "x", "files": {"": "YQ=="}}, "files"),
        ({"code": "x", "files": {f"{n}": "" for n in range(10_001)}}, "files"),
        ({"code": "x", "fetch_files": "a"}, "fetch_files"),
        ({"code": "x", "fetch_files": ["a\0"]}, "fetch_files"),
        ({"code": "x", "fetch_files": [""]}, "fetch_files"),
        ({"code": "x", "fetch_files": [3]}, "fetch_files.0"),
        ({"code": "x", "echo": 1}, "echo"),
        ({"code": "x", "output_bytes": 10**12}, "output_bytes"),
        ({"code": "x", "max_queue_seconds": -1}, "max_queue_seconds"),
        ([], ""),
        (None, ""),
        ("code", ""),
        (5, ""),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_invalid_field_is_named(quiet, body, field):
    client, sandbox = quiet
    response = await client.post("/run_code", content=json.dumps(body))
    assert response.status_code == 422, response.text
    assert problem(response)[0] == field
    assert sandbox.executions == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" \n",
        b"{",
        b"nope",
        b'{"code": "x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"code": %s}' % (b"9" * 5000),
        b"\0" * 10,
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_bodies_that_are_not_json_are_rejected(quiet, content):
    client, sandbox = quiet
    response = await client.post("/run_code", content=content)
    assert response.status_code == 422, response.text
    assert sandbox.executions == []


async def test_errors_do_not_echo_the_request(by_hand):
    async with by_hand() as (client, _):
        response = await client.post("/run_code", json={"code": ["SECRET"], "stdin": {"SECRET": 1}})
        assert response.status_code == 422
        assert "SECRET" not in response.text


async def test_limit_errors_name_the_option_that_raises_them(by_hand):
    async with by_hand(max_seconds=5.0, max_memory_mb=2000) as (client, _):
        response = await client.post("/run_code", json={"code": "x", "run_timeout": 6})
        assert "--max-seconds" in problem(response)[1]
        response = await client.post("/run_code", json={"code": "x", "memory_limit_MB": 2001})
        assert "--max-memory-mb" in problem(response)[1]


async def test_base64_may_contain_line_breaks(by_hand):
    async with by_hand() as (client, sandbox):
        await client.run("x", files={"a": "YWJj\nZGVm\r\n"})
        assert sandbox.executions[0].files == {"a": b"abcdef"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body is empty: send a JSON object, {} if you set no field."),
        (b"[]", "The body must be a JSON object."),
        (b'{"code": "x", "run_timeout": 3601}', "Must be at most 3600, which is the daemon's --max-seconds."),
        (
            b'{"code": "x", "memory_limit_MB": 15}',
            "Must be at least 16, which Python itself needs, or -1 for the default of the daemon.",
        ),
        (b'{"code": "x", "files": {"a": "YQ"}}', "The content of 'a' is not base64: encode the bytes with base64."),
        (b'{"code": "x", "files": []}', "Must be an object that maps paths to base64."),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_problem_is_a_sentence(quiet, body, message):
    client, _ = quiet
    assert problem(await client.post("/run_code", content=body))[1] == message


async def test_answer_has_few_of_many_problems_and_comes_soon(by_hand):
    async with by_hand() as (client, _):
        body = {f"{n}" + "f" * 20_000: 1 for n in range(100)}
        async with asyncio.timeout(5):
            response = await client.post("/v1/sessions", json=body)
        assert response.status_code == 422
        assert len(response.json()["detail"]) == 20


@given(body=st.dictionaries(st.sampled_from(FIELDS), ANY_JSON))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_body_is_run_or_rejected(body):
    """Any JSON is valid or raises a ValidationError, without HTTP."""
    try:
        parsed = RunCode.model_validate(
            json.loads(json.dumps(body)), context={"max_seconds": 3600.0, "max_memory_mb": 16384}
        )
    except ValidationError:
        return
    parsed.execution(1024)


async def test_any_bytes_get_a_response(by_hand):
    rng = random.Random(0)
    whole = b'{"code": "x", "cells": ["x"], "arguments": {"code": "x"}, "files": {"a": "YQ=="}, "queries": ["x"]}'
    paths = ("/run_code", "/run_jupyter", "/v1/sessions", "/v1/tools/code_interpreter/call", "/v1/tools/sessions")
    async with by_hand() as (client, _):
        for _ in range(60):
            content = bytearray(whole)
            for _ in range(rng.randrange(4)):
                content[rng.randrange(len(content))] = rng.randrange(256)
            response = await client.post(
                rng.choice(paths), content=bytes(content[: rng.randrange(1, 2 * len(content))])
            )
            assert response.status_code in (200, 422), (content, response.text)


async def test_too_large_body_gets_413_before_it_is_sent(by_hand):
    async with by_hand(max_body_mb=1) as (client, sandbox):
        reader, writer = await client.raw(
            b"POST /run_code HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000000\r\n\r\n" + b"x" * 1000
        )
        async with asyncio.timeout(10):
            answer = await reader.read()  # until the daemon closes the connection
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"--max-body-mb" in answer
        writer.close()
        assert sandbox.executions == []


async def test_too_large_chunked_body_gets_413(by_hand):
    async with by_hand(max_body_mb=1) as (client, _):
        sent = 0

        async def endless():
            nonlocal sent
            while True:
                sent += 1 << 16
                yield b"x" * (1 << 16)

        with contextlib.suppress(httpx.TransportError):  # the answer may be lost behind what is still sent
            assert (await client.post("/run_code", content=endless())).status_code == 413
        assert sent < 16 << 20
        assert (await client.run())["status"] == "Success"


async def test_body_at_the_limit_is_accepted(by_hand):
    async with by_hand(max_body_mb=4) as (client, sandbox):
        code = "#" * (3 << 20)
        await client.run(code)
        assert sandbox.executions[0].code == code


async def test_missing_body_gets_408(by_hand):
    async with by_hand(body_seconds=0.3) as (client, _):
        reader, writer = await client.raw(b"POST /run_code HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n{")
        async with asyncio.timeout(10):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408")
        writer.close()


async def test_slow_large_bodies_do_not_fill_memory(by_hand, until):
    async with by_hand(max_body_mb=1) as (client, _):
        head = b"POST /run_code HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"
        connections = [await client.raw(head + b" " * 999_000) for _ in range(12)]
        buffers = client.daemon.reader
        first_answers = [asyncio.create_task(reader.read(1)) for reader, _ in connections]
        async with asyncio.timeout(20):
            await asyncio.wait(first_answers, return_when=asyncio.FIRST_COMPLETED)
        assert buffers.buffered <= 8 << 20
        for _, writer in connections:
            writer.close()
        await until(lambda: buffers.buffered == 0)
        assert (await client.run())["status"] == "Success"
