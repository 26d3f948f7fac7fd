import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentloop import boxes
from agentloop.boxes import Box, BoxProvider, BoxSpec, Image

ACCOUNTS = "root:x:0:0:root:/root:/bin/sh\nworker:x:1000:1000::/home/worker:/bin/sh\n"
GROUPS = "root:x:0:\nworker:x:1000:\ntools:x:2000:worker\n"


@pytest.fixture(scope="session")
def tree(tmp_path_factory) -> Path:
    """Return a root file system of busybox, with the users root and worker."""
    root = tmp_path_factory.mktemp("image") / "root"
    for folder in ("bin", "etc", "root", "tmp", "home/worker", "srv", "usr"):
        (root / folder).mkdir(parents=True)
    (root / "etc/passwd").write_text(ACCOUNTS)
    (root / "etc/group").write_text(GROUPS)
    (root / "tmp").chmod(0o1777)
    busybox = root / "bin/busybox"
    busybox.write_bytes(Path("/bin/busybox").read_bytes())
    busybox.chmod(0o755)
    for name in subprocess.check_output([busybox, "--list"], text=True).split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    return root


@pytest.fixture(scope="module", params=["rootfs", pytest.param("docker", marks=pytest.mark.docker)])
def provider_name(request) -> str:
    return request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider(provider_name) -> AsyncIterator[BoxProvider]:
    provider = boxes.create(provider_name)
    await provider.open()
    yield provider
    await provider.close()


@pytest.fixture
def spec(tree) -> BoxSpec:
    return BoxSpec(image=Image(tree=tree), storage_mb=64, memory_mb=256, processes=64)


@pytest_asyncio.fixture(loop_scope="module")
async def box(provider, spec) -> AsyncIterator[Box]:
    box = await provider.start(spec)
    yield box
    await box.stop()
