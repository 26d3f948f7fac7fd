from collections.abc import AsyncIterator

import pytest_asyncio

from agentloop.sandboxes.levels.slots import Slots


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Slots]:
    """Return a sandbox for all tests of a module: executions share nothing, which is tested."""
    sandbox = Slots(slots=4, disk_mb=64)
    await sandbox.start()
    yield sandbox
    await sandbox.close()
