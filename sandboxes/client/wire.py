"""The messages between `SandboxClient` and a daemon: SandboxFusion's format, plus fields of agentloop.

SandboxFusion ignores fields that it does not know and sends null for missing values. Both are accepted here.

POST /run_code   more in:  echo, output_bytes, fetch_bytes, max_queue_seconds (absent: no bound),
                 stdin_base64 instead of stdin that is not text
                 more out: run_result.oom, .truncated, .signal; queue_seconds, files_truncated
POST /v1/sessions                  {memory_mb, files, idle_seconds, output_bytes, display_bytes} -> {id}
POST /v1/sessions/{id}/run         {code, max_seconds} -> the fields of `CellResult`
POST /v1/sessions/{id}/interrupt   {} -> anything
PUT  /v1/sessions/{id}/files       {files} -> anything
POST /v1/sessions/{id}/files/read  {paths, limit} -> {files}
DELETE /v1/sessions/{id}
GET  /v1/health                    {level, slots, draining, ...}

Files are a mapping from path to base64. Displays of types that are not text are base64, too.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeGuard, TypeVar

from pydantic import Base64Bytes, BaseModel, BeforeValidator, Field, ValidationError

from agentloop.errors import SandboxError
from agentloop.sandboxes.interface.sandbox import (
    CellError,
    CellResult,
    Execution,
    ExecutionResult,
    ProcessResult,
    SessionSettings,
)

_OUT_OF_MEMORY = re.compile(r"\S*MemoryError\b")

ModelT = TypeVar("ModelT", bound=BaseModel)
Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
Number = Annotated[float, BeforeValidator(lambda value: 0.0 if value is None else value)]
Flag = Annotated[bool, BeforeValidator(lambda value: False if value is None else value)]
Files = Annotated[dict[str, Base64Bytes], BeforeValidator(lambda value: {} if value is None else value)]


class ProcessBody(BaseModel):
    """The result of one process: CommandRunResult of SandboxFusion."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: Number = 0.0
    return_code: int | None = None
    stdout: Text = ""
    stderr: Text = ""
    oom: bool | None = None
    truncated: Flag = False

    def values(self) -> dict[str, Any]:
        """Return the fields of `ProcessResult`."""
        timed_out = self.status == "TimeLimitExceeded"
        code = self.return_code
        if code is not None and code < 0:  # SandboxFusion without isolation counts signals as Python does
            code = 128 - code
        oom = self.oom
        if oom is None:  # the server does not report memory
            oom = not timed_out and code != 0 and bool(_OUT_OF_MEMORY.match(_last_line(self.stderr)))
        return {
            "stdout": self.stdout,
            "stderr": self.stderr,
            "return_code": None if timed_out else code,
            "seconds": self.execution_time,
            "timed_out": timed_out,
            "oom": oom,
            "output_truncated": self.truncated,
        }


class RunBody(BaseModel):
    """The answer of /run_code."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: Text = ""
    compile_result: ProcessBody | None = None
    run_result: ProcessBody | None = None
    files: Files = Field(default_factory=dict)
    files_truncated: Flag = False
    queue_seconds: Number = 0.0

    def result(self, waited: float) -> ExecutionResult:
        """Return the result; `waited`: seconds in the client's queue. Raises `SandboxError` if the sandbox failed."""
        process = self.run_result or self.compile_result
        if self.status == "SandboxError" or process is None or process.status == "Error":
            message = self.message or (process.stderr if process else "") or "it gave no reason"
            raise SandboxError(f"The sandbox failed: {message.rstrip('.')}.")
        return ExecutionResult(
            **process.values(),
            compilation=ProcessResult(**self.compile_result.values()) if self.compile_result else None,
            files=self.files,
            files_truncated=self.files_truncated,
            queue_seconds=waited + self.queue_seconds,
        )


class SessionBody(BaseModel):
    """The answer to opening a session."""

    id: str = Field(min_length=1)


class FilesBody(BaseModel):
    """The answer to reading files."""

    files: Files


class ErrorBody(BaseModel):
    """An uncaught exception of a cell."""

    name: str
    value: str
    traceback: list[str]


class CellBody(BaseModel):
    """The answer of a cell of a session."""

    stdout: str
    stderr: str
    displays: list[dict[str, str]] = []
    error: ErrorBody | None = None
    seconds: float
    timed_out: bool = False
    oom: bool = False
    output_truncated: bool = False
    session_ended: Literal["", "exited", "killed", "oom"] = ""

    def result(self) -> CellResult:
        """Return the result. Raises `SandboxError` for a display that is not base64."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        values["error"] = CellError(**self.error.model_dump()) if self.error else None
        values["displays"] = [{kind: _shown(kind, text) for kind, text in shown.items()} for shown in self.displays]
        return CellResult(**values)


class HealthBody(BaseModel):
    """The fields of /v1/health that the client uses."""

    level: str
    slots: int = Field(ge=1)
    draining: bool = False


def execution_body(execution: Execution, max_queue_seconds: float) -> bytes:
    """Return the body of a /run_code request."""
    body: dict[str, Any] = {
        "code": execution.code,
        "language": execution.language,
        "run_timeout": execution.timeout,
        "compile_timeout": execution.compile_timeout,
        "memory_limit_MB": execution.memory_mb,
        "files": encode_files(execution.files),
        "fetch_files": list(execution.fetch_files),
        "output_bytes": execution.output_bytes,
        "fetch_bytes": execution.fetch_bytes,
        "echo": execution.echo,
    }
    if is_binary(execution.stdin):
        body["stdin_base64"] = base64.b64encode(execution.stdin).decode()
    else:
        body["stdin"] = execution.stdin.decode() if isinstance(execution.stdin, bytes) else execution.stdin
    if max_queue_seconds < float("inf"):
        body["max_queue_seconds"] = max_queue_seconds
    return encode(body)


def is_binary(stdin: str | bytes | None) -> TypeGuard[bytes]:
    """Return whether stdin cannot be sent as text."""
    if not isinstance(stdin, bytes):
        return False
    try:
        stdin.decode()
    except UnicodeDecodeError:
        return True
    return False


def settings_body(settings: SessionSettings) -> bytes:
    """Return the body of the request that opens a session."""
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    return encode(values | {"files": encode_files(settings.files)})


def encode(body: Mapping[str, Any]) -> bytes:
    """Encode the body of a request."""
    return json.dumps(body).encode()  # ASCII, so that lone surrogates survive


def encode_files(files: Mapping[str, bytes]) -> dict[str, str]:
    """Encode files: path -> base64."""
    return {path: base64.b64encode(content).decode() for path, content in files.items()}


def decode(model: type[ModelT], body: bytes) -> ModelT:
    """Parse an answer. Raises `SandboxError` if the body does not fit the model."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"]))
        raise SandboxError(
            f"The daemon's answer is invalid: {problem['msg']}{f' ({place})' if place else ''}; it starts with "
            f"{body[:100].decode(errors='replace')!r}."
        ) from error


def detail(body: bytes) -> str:
    """Return the message of an error body in one line: FastAPI's `detail`, or the start of the text."""
    try:
        found = json.loads(body)["detail"]
    except (ValueError, TypeError, KeyError):
        return " ".join(body[:300].decode(errors="replace").split())
    if isinstance(found, Sequence) and not isinstance(found, str):
        return "; ".join(_problem(item) for item in found)
    return str(found)


def has_detail(body: bytes) -> bool:
    """Return whether an error body comes from a daemon, and not from a proxy in front of it."""
    try:
        return "detail" in json.loads(body)
    except (ValueError, TypeError):
        return False


def _problem(item: Any) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    place = ".".join(str(part) for part in item.get("loc", ()) if part != "body")
    return f"{place}: {item.get('msg', '')}" if place else str(item.get("msg", item))


def _shown(kind: str, text: str) -> str | bytes:
    if kind.startswith("text/") or kind == "image/svg+xml":
        return text
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise SandboxError(f"A display of type {kind!r} is not base64.") from error


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]
