import pytest_asyncio

from agentloop import boxes
from tests.boxes.conftest import tree

__all__ = ["tree"]


@pytest_asyncio.fixture
async def provider():
    provider = boxes.create("rootfs", memory_mb=256, storage_mb=64)
    await provider.open()
    yield provider
    await provider.close()
