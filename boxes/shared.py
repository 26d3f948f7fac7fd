"""Providers that all episodes of a process share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from agentloop.boxes.interface.box import BoxProvider
from agentloop.boxes.registry import create
from agentloop.errors import UserError

_PROVIDERS: dict[asyncio.AbstractEventLoop, dict[str, asyncio.Task[BoxProvider]]] = {}


async def provider_of(name: str | None = None, options: Mapping[str, Any] | None = None) -> BoxProvider:
    """Return the open provider of this event loop; equal options share one. Its boxes end with this process.

    Without a name it is docker if an engine answers, else rootfs. Raises `UserError` if the provider cannot make boxes.
    """
    for loop in [loop for loop in _PROVIDERS if loop.is_closed()]:
        del _PROVIDERS[loop]
    providers = _PROVIDERS.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps([name, dict(options or {})], sort_keys=True, default=str)
    if key not in providers or _has_failed(providers[key]):  # an engine may answer again
        providers[key] = asyncio.create_task(_open(name, options or {}))
    return await asyncio.shield(providers[key])


async def close_providers() -> None:
    """Stop all boxes of this event loop's providers."""
    opening = _PROVIDERS.pop(asyncio.get_running_loop(), {}).values()
    await asyncio.gather(*opening, return_exceptions=True)
    async with AsyncExitStack() as stack:
        for task in opening:
            if not _has_failed(task):
                stack.push_async_callback(task.result().close)


def _has_failed(opening: asyncio.Task[BoxProvider]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


async def _open(name: str | None, options: Mapping[str, Any]) -> BoxProvider:
    if name is None:
        provider = create("docker")
        try:
            await provider.open()
        except UserError:
            name = "rootfs"
        else:
            if not options:
                return provider
            await provider.close()
            name = "docker"
    provider = create(name, **options)
    await provider.open()
    return provider
