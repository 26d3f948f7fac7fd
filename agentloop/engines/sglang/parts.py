"""`Part`: what `/generate` of SGLang answers, whole or as a stream."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentloop.engines.base import EngineDead
from agentloop.engines.token_listeners import Listener
from agentloop.errors import EngineError
from agentloop.process.offloading import off_loop

_MAX_READS = 64
"""Events of a stream that repeat all earlier tokens are read again when they have grown by a 64th."""


@dataclass(slots=True, frozen=True)
class Part:
    """Tokens of one request: a turn, or the part of it that one policy version sampled."""

    ids: array[int]
    logprobs: array[float]
    reason: str
    """`stop`, `length` or `abort`."""
    message: str = ""
    """Cause of an abort."""


def read_part(content: bytes | str) -> Part:
    """Read a whole answer."""
    meta = json.loads(content)["meta_info"]
    ids, logprobs = _sampled(meta)
    return _ended(ids, logprobs, meta["finish_reason"])


class PartStream:
    """Reads the events of a stream and passes new ids to `hear`.

    An event has the tokens since the one before, or, without SGLang's option `incremental_streaming_output`, all tokens
    of the request so far.
    """

    def __init__(self, hear: Listener) -> None:
        self._hear = hear
        self._ids, self._logprobs = array("i"), array("f")
        self._finish: Mapping[str, Any] | None = None
        self._is_whole = False
        """Whether events repeat earlier tokens."""
        self._unread = ""
        self._num_read = 0
        """Characters of the last event that was read."""

    async def read(self, event: str) -> None:
        """Take the next event. Raises `EngineError` if it is an error."""
        self._unread = event
        is_last = '"finish_reason": null' not in event and '"finish_reason":null' not in event
        if not self._is_whole or is_last or (len(event) - self._num_read) * _MAX_READS >= len(event):
            await self._read()

    async def end(self) -> Part:
        """Return the part at the end of the stream. Raises `EngineDead` if the last event is missing."""
        if self._unread:
            await self._read()
        if self._finish is None:
            raise EngineDead("the SGLang server ended a stream before its turn was over")
        return _ended(self._ids, self._logprobs, self._finish)

    async def _read(self) -> None:
        event, self._unread = self._unread, ""
        self._num_read = len(event)
        data = await off_loop(len(event), json.loads, event)
        if "error" in data:
            error = data["error"]
            raise EngineError(f"SGLang: {error.get('message', error) if isinstance(error, dict) else error}")
        meta = data["meta_info"]
        ids, logprobs = _sampled(meta)
        # The count is that of the whole request.
        self._is_whole = len(ids) == meta["completion_tokens"] and len(self._ids) > 0
        if self._is_whole:
            ids, logprobs = ids[len(self._ids) :], logprobs[len(self._ids) :]
        self._ids += ids
        self._logprobs += logprobs
        self._finish = meta["finish_reason"]
        if ids:
            self._hear(ids)


def _sampled(meta: Mapping[str, Any]) -> tuple[array[int], array[float]]:
    # The server leaves the field out if nothing was sampled.
    sampled = meta.get("output_token_logprobs") or ()
    return array("i", [entry[1] for entry in sampled]), array("f", [entry[0] for entry in sampled])


def _ended(ids: array[int], logprobs: array[float], finish: Mapping[str, Any]) -> Part:
    return Part(ids, logprobs, str(finish["type"]), str(finish.get("message", "")))
