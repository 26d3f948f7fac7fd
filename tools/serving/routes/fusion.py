"""POST /run_code: the protocol of SandboxFusion, with further fields.

Clients of SandboxFusion retry after 504, but not after their own timeout. So requests queue here, and get 504 before
their client stops waiting: if the queue leaves too little time for the limits of compiler and code, or if anything else
takes too long. The work is then killed. If the sandbox cannot run an execution, the answer has HTTP 200 and a status.
https://github.com/bytedance/SandboxFusion
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import AfterValidator, Field

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.client.wire import RunBody
from agentloop.sandboxes.interface import languages
from agentloop.sandboxes.interface.sandbox import Execution, ExecutionResult, ProcessResult, SandboxBusyError
from agentloop.tools.serving.http import outcomes
from agentloop.tools.serving.http.bodies import (
    LARGE,
    Base64,
    ClientGoneError,
    FetchBytes,
    Files,
    LenientBody,
    MemoryOrDefault,
    OutputBytes,
    Paths,
    Seconds,
    documented,
)
from agentloop.tools.serving.http.deadlines import OverdueError, seconds_since, within
from agentloop.tools.serving.http.disconnects import unless_gone
from agentloop.tools.serving.state.daemon import Daemon

_HEAD_START = 0.5
"""Seconds by which the daemon's 504 precedes the client's timeout."""
_POD = os.environ.get("MY_POD_NAME")

router = APIRouter(tags=["SandboxFusion"])


def _known(name: str) -> str:
    languages.find(name)
    return name


class RunCode(LenientBody):
    """The body of /run_code."""

    client_seconds: ClassVar[float] = 10.0
    """Seconds that clients of SandboxFusion wait beyond the time limits of compiler and code."""
    overhead_seconds: ClassVar[float] = 1.5
    """Seconds besides its limits that an execution may take: to write its files, end it, and answer."""
    code: str
    language: Annotated[str, AfterValidator(_known)] = "python"
    stdin: str | None = None
    stdin_base64: Base64 = None
    """Input that is not text, instead of `stdin`."""
    compile_timeout: Seconds = 10.0
    run_timeout: Seconds = 10.0
    memory_limit_MB: MemoryOrDefault = -1
    files: Files = Field(default_factory=dict)
    fetch_files: Paths = Field(default_factory=list)
    echo: bool = False
    output_bytes: OutputBytes = 1 << 20
    fetch_bytes: FetchBytes = 64 << 20
    max_queue_seconds: Annotated[float, Field(ge=0)] | None = None

    def execution(self, memory_mb: int) -> Execution:
        """Return the execution; `memory_mb` is the daemon's default."""
        return Execution(
            code=self.code,
            language=self.language,
            stdin=self.stdin if self.stdin_base64 is None else self.stdin_base64,
            timeout=self.run_timeout,
            compile_timeout=self.compile_timeout,
            memory_mb=memory_mb if self.memory_limit_MB == -1 else self.memory_limit_MB,
            files=self.files,
            fetch_files=self.fetch_files,
            output_bytes=self.output_bytes,
            fetch_bytes=self.fetch_bytes,
            echo=self.echo,
        )

    @property
    def seconds(self) -> float:
        """Return the seconds until the answer is due. They include the client's own limit on the queue."""
        return self._patience if self.max_queue_seconds is None else self._patience + self.queue_seconds

    @property
    def queue_seconds(self) -> float:
        """Return how long the execution may wait for a slot, so that the rest of `seconds` is enough to run it."""
        if self.max_queue_seconds is not None:
            return min(self._patience, self.max_queue_seconds)
        compiles = bool(languages.find(self.language).compile)
        return self._patience - self.run_timeout - compiles * self.compile_timeout - self.overhead_seconds

    @property
    def _patience(self) -> float:
        return self.compile_timeout + self.run_timeout + self.client_seconds - _HEAD_START


@router.post("/run_code", response_model=RunBody, openapi_extra=documented(RunCode))
async def run_code(request: Request) -> Response:
    """Run a program.

    Fields beyond SandboxFusion: echo, output_bytes, fetch_bytes, max_queue_seconds and stdin_base64 in the request;
    queue_seconds, files_truncated, request_id and, in the results of processes, oom, truncated and signal in the
    answer.
    """
    daemon = Daemon.of(request)
    body = await daemon.reader.parse(request, RunCode)
    try:
        execution = body.execution(daemon.settings.memory_mb)
        gone_by = seconds_since(request)
        work = daemon.sandbox.run(execution, max_queue_seconds=max(body.queue_seconds - gone_by, 0.0))
        result = await unless_gone(request, within(body.seconds - gone_by, work))
    except OverdueError as error:
        daemon.metrics.count_execution("overdue")
        raise outcomes.overdue(request) from error
    except SandboxBusyError as error:
        _note(daemon, request, "no_slot")
        raise HTTPException(504, str(error)) from error
    except ClientGoneError:
        _note(daemon, request, "client_gone")
        raise
    except (SandboxError, UserError) as error:  # a UserError: the compiler is not installed
        failed = failure(request, error)
        _note(daemon, request, "sandbox_error")
        return outcomes.answer(failed)
    _note(daemon, request, outcomes.of_execution(result))
    daemon.metrics.observe(result)
    if sum(map(len, result.files.values())) > LARGE:
        return await asyncio.to_thread(lambda: outcomes.answer(success(request, result)))
    return outcomes.answer(success(request, result))


def _note(daemon: Daemon, request: Request, outcome: str) -> None:
    outcomes.note(request, outcome)
    daemon.metrics.count_execution(outcome)


def success(request: Request, result: ExecutionResult) -> dict[str, Any]:
    """Return the answer if the sandbox worked, even if the code failed."""
    compilation = result.compilation
    return {
        "status": "Success" if result.compiled and result.ok and not result.timed_out else "Failed",
        "message": "",
        "compile_result": process(compilation) if compilation else None,
        "run_result": process(result) if result.compiled else None,
        **common(request, result.files),
        "files_truncated": result.files_truncated,
        "queue_seconds": result.queue_seconds,
    }


def failure(request: Request, error: SandboxError | UserError) -> dict[str, Any]:
    """Return the answer if the sandbox failed.

    Raises a `SandboxError` again while the daemon drains: the application then answers 503, since another daemon may
    run the code.
    """
    if isinstance(error, SandboxError) and Daemon.of(request).draining:
        raise error
    message = str(error)
    broken = {"status": "Error", "execution_time": None, "return_code": None, "stdout": "", "stderr": message}
    return {
        "status": "SandboxError",
        "message": message,
        "compile_result": None,
        "run_result": broken,
        **common(request, {}),
        "queue_seconds": 0.0,
    }


def common(request: Request, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the fields that all answers have."""
    return {
        "executor_pod_name": _POD,
        "files": {path: outcomes.to_base64(content) for path, content in files.items()},
        "request_id": outcomes.request_id(request),
    }


def process(result: ProcessResult) -> dict[str, Any]:
    """Return SandboxFusion's CommandRunResult. Output is never null, because verl's tool does not expect that."""
    return {
        "status": "TimeLimitExceeded" if result.timed_out else "Finished",
        "execution_time": result.seconds,
        "return_code": result.return_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "oom": result.oom,
        "truncated": result.output_truncated,
        "signal": result.signal,
    }
