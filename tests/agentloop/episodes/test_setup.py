"""Start and end of what the episodes of a run use."""

from types import SimpleNamespace

import pytest

from agentloop.episodes.setup import started


class Part:
    """Counts its life."""

    def __init__(self, error=None):
        self.is_open = False
        self._error = error

    async def start(self):
        self.is_open = True

    async def close(self):
        self.is_open = False
        if self._error is not None:
            raise self._error

    shutdown = close


async def test_an_engine_that_cannot_close_does_not_keep_the_others_open():
    parts = engine, toolset, reward = Part(OSError("the engine is gone")), Part(), Part()

    async def play():
        async with started(engine, SimpleNamespace(toolset=toolset, reward=reward)):
            assert all(part.is_open for part in parts)

    with pytest.raises(OSError, match="the engine is gone"):
        await play()
    assert not any(part.is_open for part in parts)
