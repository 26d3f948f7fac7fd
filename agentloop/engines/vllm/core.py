"""Wait for vLLM's engine core: for tokens that it has sent, and for replies unless it has died."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from agentloop.engines.base import EngineDead

T = TypeVar("T")
DEAD = "vLLM's engine core has ended"
_LOOK_SECONDS = 0.2


class OutputFence:
    """Waits until this process has handled all tokens that the engine core has sent.

    The engine core sends the tokens of a step and the reply to a pause through one ordered stream. So the tokens arrive
    before the reply, but may still be in the queue of vLLM's output handler. The handler has processed all of them when
    it waits for more and the queue is empty.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._core = llm.engine_core
        self._next = self._core.get_output_async
        self._asking = False
        self._core.get_output_async = self._get

    async def _get(self) -> Any:
        self._asking = True
        outputs = await self._next()
        self._asking = False
        return outputs

    async def wait(self) -> None:
        """Wait. Call it only while requests are in flight, because the handler starts with the first request."""
        while not (self._asking and self._core.outputs_queue.empty()):
            if self._llm.errored:
                raise EngineDead(DEAD)
            await asyncio.sleep(0)


async def unless_dead(llm: Any, answer: Awaitable[T]) -> T:
    """Return the reply of the engine core. Raises `EngineDead` if the core dies before it replies.

    vLLM itself would wait forever, or raise its own error. The reply is awaited without a task of its own: each task
    costs rounds of the event loop, which are long while many agent loops run.
    """
    loop = asyncio.get_running_loop()
    next_look: asyncio.Handle

    def look() -> None:
        nonlocal next_look
        if llm.errored:
            limit.reschedule(loop.time())
        else:
            next_look = loop.call_later(_LOOK_SECONDS, look)

    next_look = loop.call_soon(look)
    try:
        async with asyncio.timeout(None) as limit:
            return await answer
    except Exception as error:
        if llm.errored and not isinstance(error, EngineDead):
            raise EngineDead(DEAD) from error
        raise
    finally:
        next_look.cancel()
