"""Read request bodies within limits of size and time, validate them, and name the field of an error."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Annotated, Any, NoReturn, TypeVar

from fastapi import HTTPException, Request
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails

from agentloop.boxes.interface.spec import check_variables
from agentloop.errors import nearest
from agentloop.sandboxes.interface.sandbox import MAX_FILES, MIN_MEMORY_MB, check_files

_CLOSE = {"connection": "close"}
"""Headers of an answer to a request whose body is not read to its end."""
LARGE = 1 << 20
"""Bytes above which work is moved off the event loop: it takes some ms."""
_SMALL = 1 << 16
_MAX_PROBLEMS = 20
"""Maximum number of problems in one answer, since a large body may have millions."""
_NAME_CHARS = 64
"""Characters of an unknown name that are compared with the known ones."""
_BODIES_AT_ONCE = 8
"""Limit on the bytes of all partly read bodies, as a multiple of the largest body."""

ModelT = TypeVar("ModelT", bound=BaseModel)


class Body(BaseModel):
    """Base of request bodies. Types are exact: neither true nor "1" is a number. Unknown fields are errors."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, use_attribute_docstrings=True, extra="forbid")


class LenientBody(Body):
    """Base of bodies of other people's protocols. Unknown fields are ignored, since their clients send more."""

    model_config = ConfigDict(extra="ignore")


def _within(option: str) -> AfterValidator:
    """Return a validator for the largest value that `Reader` allows for an option."""

    def check(value: float, info: ValidationInfo) -> float:
        assert info.context is not None
        bound = info.context[option]
        if value > bound:
            raise ValueError(f"Must be at most {bound:g}, which is the daemon's --{option.replace('_', '-')}.")
        return value

    return AfterValidator(check)


def _decode_files(value: Any) -> dict[str, bytes]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("Must be an object that maps paths to base64.")
    files = {path: _decode(path, content) for path, content in value.items() if _is_meant(path, content)}
    check_files(files)
    return files


def _is_meant(path: str, content: Any) -> bool:
    return content is not None and "IGNORE_THIS_FILE" not in path  # as in SandboxFusion


def _decode(path: str, content: Any) -> bytes:
    if not isinstance(content, str):
        raise ValueError(f"The content of {path!r} must be a string of base64.")
    return decode_base64(content, f"The content of {path!r}")


def decode_base64(text: str, what: str) -> bytes:
    """Decode base64, which may have line breaks. Raises `ValueError`, whose message begins with `what`."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{what} is not base64: encode the bytes with base64.") from error


def _at_least(minimum: int, reason: str = "") -> AfterValidator:
    """Return a validator for numbers of MiB from `minimum`, and for -1."""

    def check(value: int) -> int:
        if value != -1 and value < minimum:
            raise ValueError(f"Must be at least {minimum}{reason}, or -1 for the default of the daemon.")
        return value

    return AfterValidator(check)


def _decode_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError("Must be a string of base64.")
    return decode_base64(value, "The value")


def _check_paths(paths: list[str]) -> list[str]:
    for path in paths:
        if not path or "\0" in path:
            raise ValueError(f"{path!r:.200} is not a path: give one that is not empty and has no NUL characters.")
    return paths


def _check_variables(variables: dict[str, str]) -> dict[str, str]:
    check_variables(variables)
    return variables


Seconds = Annotated[float, Field(gt=0), _within("max_seconds")]
SizeOrDefault = Annotated[int, _at_least(1), _within("max_memory_mb")]
"""Memory or storage of a box in MiB; -1 is the default of the daemon."""
MemoryOrDefault = Annotated[int, _at_least(MIN_MEMORY_MB, ", which Python itself needs"), _within("max_memory_mb")]
"""Memory of an execution in MiB; -1 is the daemon's --memory-mb."""
OutputBytes = Annotated[int, Field(gt=0, le=64 << 20)]
FetchBytes = Annotated[int, Field(gt=0, le=256 << 20)]
Variables = Annotated[dict[str, str], AfterValidator(_check_variables)]
"""Environment variables of a box."""
Paths = Annotated[list[str], Field(max_length=MAX_FILES), AfterValidator(_check_paths)]
Base64 = Annotated[bytes | None, BeforeValidator(_decode_bytes), WithJsonSchema({"type": "string", "format": "base64"})]
Files = Annotated[
    dict[str, bytes],
    BeforeValidator(_decode_files),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "null"], "format": "base64"}}),
]
"""Path -> content; base64 on the wire."""


class Reader:
    """Reads and validates request bodies; all requests of a daemon share one.

    `bounds` has the largest allowed value of each option that `Seconds` and the memory types name.
    """

    def __init__(self, *, max_body_mb: int, body_seconds: float, bounds: Mapping[str, float]) -> None:
        self._max_body_mb = max_body_mb
        self._body_seconds = body_seconds
        self._bounds = bounds
        self._limit = max_body_mb << 20
        self.buffered = 0
        """Bytes in memory of all requests that are partly read."""

    async def parse(self, request: Request, model: type[ModelT]) -> ModelT:
        """Read and validate a body. Raises `HTTPException` 408, 413, 422 or 503."""
        body = await self._read(request)
        if len(body) > LARGE:
            return await asyncio.to_thread(self._parse, body, model)
        return self._parse(body, model)

    def _parse(self, body: bytes, model: type[ModelT]) -> ModelT:
        if not body.strip():
            refuse("", "The body is empty: send a JSON object, {} if you set no field.")
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            refuse("", f"The body is not JSON: {'too deep' if isinstance(error, RecursionError) else error}")
        try:
            return model.model_validate(value, context=self._bounds)
        except ValidationError as error:
            raise HTTPException(422, _problems(error, model)) from error

    async def save(self, request: Request, file: IO[bytes], *, max_mb: int) -> str:
        """Write a raw body to a file, and return its sha256. Raises `HTTPException` 408 or 413.

        `max_mb` is the limit --max-image-mb, or what other images leave of it.
        """
        digest, size = hashlib.sha256(), 0
        while True:
            message = await self._next(request, self._body_seconds)
            piece = message.get("body", b"")
            size += len(piece)
            if size > max_mb << 20:
                raise HTTPException(
                    413, f"The body is above {max_mb} MiB: start the daemon with a larger --max-image-mb.", _CLOSE
                )
            digest.update(piece)
            await asyncio.to_thread(file.write, piece)
            if not message.get("more_body"):
                file.flush()
                file.seek(0)
                return digest.hexdigest()

    async def _read(self, request: Request) -> bytes:
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._limit:
            self._too_large()
        message = await self._next(request, self._body_seconds)
        if not message.get("more_body"):
            body: bytes = message.get("body", b"")
            if len(body) > self._limit:
                self._too_large()
            return body
        return await self._read_parts(request, message)

    async def _read_parts(self, request: Request, message: Mapping[str, Any]) -> bytes:
        deadline = asyncio.get_running_loop().time() + self._body_seconds
        body = bytearray()
        with self._count() as count:
            while True:
                body += message.get("body", b"")
                count(len(body))
                if not message.get("more_body"):
                    return bytes(body)
                message = await self._next(request, deadline - asyncio.get_running_loop().time())

    async def _next(self, request: Request, seconds: float) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                message = await request.receive()
        except TimeoutError as error:
            detail = f"The request did not arrive within {self._body_seconds:g} s (--body-seconds)."
            raise HTTPException(408, detail, _CLOSE) from error
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        return message

    @contextmanager
    def _count(self) -> Iterator[Any]:
        """Count the bytes of one body, and of all bodies that are being read."""
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            self.buffered += size - counted
            counted = size
            if size > self._limit:
                self._too_large()
            if size > _SMALL and self.buffered > _BODIES_AT_ONCE * self._limit:
                raise HTTPException(503, "Too many large requests arrive at once: try again later.", _CLOSE)

        try:
            yield count
        finally:
            self.buffered -= counted

    def _too_large(self) -> NoReturn:
        detail = f"The body is above {self._max_body_mb} MiB: start the daemon with a larger --max-body-mb."
        raise HTTPException(413, detail, _CLOSE)


class ClientGoneError(Exception):
    """The client has disconnected."""


def refuse(field: str, message: str) -> NoReturn:
    """Raise a 422 in the format of FastAPI; `field` may be empty."""
    raise HTTPException(422, [{"type": "value_error", "loc": ["body", field] if field else ["body"], "msg": message}])


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a body for the OpenAPI document, since handlers read bodies themselves."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def meant(name: str, known: Iterable[str]) -> str:
    """Return `nearest` for a name of any length, which a client has sent."""
    return nearest(name[:_NAME_CHARS], known)


def _problems(error: ValidationError, model: type[BaseModel]) -> list[dict[str, Any]]:
    problems = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_PROBLEMS]
    return [
        {"type": problem["type"], "loc": ["body", *problem["loc"]], "msg": _message(problem, model)}
        for problem in problems
    ]


def _message(problem: ErrorDetails, model: type[BaseModel]) -> str:
    match problem["type"]:
        case "extra_forbidden":
            fields = model.model_fields
            return f"Unknown field.{meant(str(problem['loc'][-1]), fields)} Fields: {', '.join(fields)}."
        case "model_type":
            return "The body must be a JSON object."
        case "value_error":
            return problem["msg"].removeprefix("Value error, ")
        case _:
            return problem["msg"]
