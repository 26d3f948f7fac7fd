"""Where vLLM is: what it has sent, and whether it still answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from agentloop.engines.base import EngineDead

T = TypeVar("T")
DEAD = "vLLM's engine core has ended"
_LOOK_SECONDS = 0.2


class OutputFence:
    """Knows when everything that the engine core sent has reached the requests' states in this process.

    The engine core sends a step's tokens and the reply to a pause through one ordered stream, so once the reply is
    here the tokens are too; but they may still wait in the queue of vLLM's output handler. The handler is done with
    all of them when it asks for more and there is none.
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
        """Only while requests are in flight: the handler starts with the first one."""
        while not (self._asking and self._core.outputs_queue.empty()):
            if self._llm.errored:
                raise EngineDead(DEAD)
            await asyncio.sleep(0)


async def unless_dead(llm: Any, answer: Awaitable[T]) -> T:
    """What the engine core answers. Raises `EngineDead` once it has ended: vLLM leaves those who wait for an answer
    waiting then, or raises an error of its own."""
    task = asyncio.ensure_future(answer)
    try:
        while not task.done():
            if llm.errored:
                raise EngineDead(DEAD)
            await asyncio.wait([task], timeout=_LOOK_SECONDS)
        return task.result()
    except Exception as error:
        if llm.errored and not isinstance(error, EngineDead):
            raise EngineDead(DEAD) from error
        raise
    finally:
        task.cancel()
