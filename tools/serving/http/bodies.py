"""Bodies of requests: read within bounds of size and time, parsed, and refused with the field named."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn, TypeVar

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

from agentloop.sandboxes.base import MAX_FILES, check_files
from agentloop.tools.serving.settings import Settings

_CLOSE = {"connection": "close"}
"""What is left of the body is not read."""
LARGE = 1 << 20
"""Bytes that are not worked through on the event loop: some ms."""
_SMALL = 1 << 16
_BODIES_AT_ONCE = 8
"""Of the largest size, or as many smaller ones: what clients that send slowly can hold of the daemon's memory."""

ModelT = TypeVar("ModelT", bound=BaseModel)


class Body(BaseModel):
    """Base of what requests bring. Types are exact: true is no number and "1" neither. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def _within(option: str) -> AfterValidator:
    """At most what the daemon's settings say."""

    def check(value: float, info: ValidationInfo) -> float:
        assert info.context is not None
        bound = getattr(info.context["settings"], option)
        if value > bound:
            raise ValueError(f"above {bound:g}, which is the daemon's --{option.replace('_', '-')}")
        return value

    return AfterValidator(check)


def _decode_files(value: Any) -> dict[str, bytes]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("must be an object: path -> base64")
    files = {path: _decode(path, content) for path, content in value.items() if _is_meant(path, content)}
    check_files(files)
    return files


def _is_meant(path: str, content: Any) -> bool:
    return content is not None and "IGNORE_THIS_FILE" not in path  # as SandboxFusion has it


def _decode(path: str, content: Any) -> bytes:
    if not isinstance(content, str):
        raise ValueError(f"the content of {path!r} must be base64, in a string")
    return decode_base64(content, f"the content of {path!r}")


def decode_base64(text: str, what: str) -> bytes:
    """Lines may be broken. Raises `ValueError`."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{what} is no base64") from error


def _default_or_within(value: int) -> int:
    if value != -1 and value <= 0:
        raise ValueError("must be above 0, or -1 for the daemon's own")
    return value


def _decode_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError("must be base64, in a string")
    return decode_base64(value, "it")


def _check_paths(paths: list[str]) -> list[str]:
    for path in paths:
        if not path or "\0" in path:
            raise ValueError(f"{path!r} is no path")
    return paths


Seconds = Annotated[float, Field(gt=0), _within("max_seconds")]
MemoryMB = Annotated[int, Field(gt=0), _within("max_memory_mb")]
MemoryOrDefault = Annotated[int, AfterValidator(_default_or_within), _within("max_memory_mb")]
"""MiB; -1 is the daemon's --memory-mb."""
OutputBytes = Annotated[int, Field(gt=0, le=64 << 20)]
FetchBytes = Annotated[int, Field(gt=0, le=256 << 20)]
Paths = Annotated[list[str], Field(max_length=MAX_FILES), AfterValidator(_check_paths)]
Base64 = Annotated[bytes | None, BeforeValidator(_decode_bytes), WithJsonSchema({"type": "string", "format": "base64"})]
Files = Annotated[
    dict[str, bytes],
    BeforeValidator(_decode_files),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "null"], "format": "base64"}}),
]
"""Path -> content, which is base64 on the wire."""


class Reader:
    """Reads bodies; one for all requests."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._context = {"settings": settings}
        self._limit = settings.max_body_mb << 20
        self._buffered = 0

    async def parse(self, request: Request, model: type[ModelT]) -> ModelT:
        """The body as `model`. Raises `HTTPException` 408, 413, 422 or 503."""
        body = await self._read(request)
        if len(body) > LARGE:
            return await asyncio.to_thread(self._parse, body, model)
        return self._parse(body, model)

    def _parse(self, body: bytes, model: type[ModelT]) -> ModelT:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            refuse("", f"The body is no JSON: {'too deep' if isinstance(error, RecursionError) else error}")
        try:
            return model.model_validate(value, context=self._context)
        except ValidationError as error:
            raise HTTPException(422, _problems(error)) from error

    async def _read(self, request: Request) -> bytes:
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._limit:
            self._too_large()
        message = await self._next(request, self._settings.body_seconds)
        if not message.get("more_body"):
            body: bytes = message.get("body", b"")
            if len(body) > self._limit:
                self._too_large()
            return body
        return await self._read_parts(request, message)

    async def _read_parts(self, request: Request, message: Mapping[str, Any]) -> bytes:
        deadline = asyncio.get_running_loop().time() + self._settings.body_seconds
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
            detail = f"The request did not arrive within {self._settings.body_seconds:g} s (--body-seconds)."
            raise HTTPException(408, detail, _CLOSE) from error
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        return message

    @contextmanager
    def _count(self) -> Iterator[Any]:
        """Follow how much of a body is there, and how much of all bodies."""
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            self._buffered += size - counted
            counted = size
            if size > self._limit:
                self._too_large()
            if size > _SMALL and self._buffered > _BODIES_AT_ONCE * self._limit:
                raise HTTPException(503, "Too many large requests arrive at once: try again.", _CLOSE)

        try:
            yield count
        finally:
            self._buffered -= counted

    def _too_large(self) -> NoReturn:
        detail = f"The body is above {self._settings.max_body_mb} MiB: start the daemon with a larger --max-body-mb."
        raise HTTPException(413, detail, _CLOSE)


class ClientGoneError(Exception):
    """Nobody waits for the answer."""


def refuse(field: str, message: str) -> NoReturn:
    """422 in the shape that FastAPI gives it; `field` may be empty."""
    raise HTTPException(422, [{"type": "value_error", "loc": ["body", field] if field else ["body"], "msg": message}])


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """The body's schema, for the OpenAPI document: handlers read it themselves."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def _problems(error: ValidationError) -> list[dict[str, Any]]:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return [{**problem, "loc": ["body", *problem["loc"]]} for problem in problems]
