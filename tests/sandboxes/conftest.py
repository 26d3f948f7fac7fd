from collections.abc import AsyncIterator

import pytest_asyncio

from agentloop.sandboxes.levels.slots import Slots


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Slots]:
    """One sandbox a module: executions share nothing, and that is tested."""
    sandbox = Slots(slots=4, disk_mb=64)
    await sandbox.start()
    yield sandbox
    await sandbox.close()
