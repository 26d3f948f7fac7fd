from collections.abc import AsyncIterator

import pytest_asyncio

from agentloop.sandboxes.bubblewrap import Bubblewrap


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Bubblewrap]:
    """One sandbox a module: executions share nothing, and that is tested."""
    sandbox = Bubblewrap(max_concurrent=4, disk_mb=64)
    await sandbox.start()
    yield sandbox
    await sandbox.close()
