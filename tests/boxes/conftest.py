import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from agentloop import boxes
from agentloop.boxes import Box, BoxProvider, BoxSpec, Image
from agentloop.boxes.images import busybox
from tests.tools.serving.conftest import ByHand, serving

PODMAN = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
"""


@pytest.fixture(scope="session")
def tree(tmp_path_factory) -> Path:
    """Return a root file system of busybox, with the users root and worker."""
    root = tmp_path_factory.mktemp("image") / "root"
    busybox.fill(root)
    with (root / "etc/group").open("a") as groups:
        groups.write("tools:x:2000:worker\n")
    return root


DOCKER = (pytest.param(name, marks=pytest.mark.docker) for name in ("docker", "podman"))


@pytest.fixture(scope="module", params=["rootfs", "remote", *DOCKER])
def provider_name(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def podman() -> Iterator[str]:
    """Start podman's service with storage of its own, and return its address."""
    folder = Path(tempfile.mkdtemp(prefix="podman-", dir="/tmp"))  # its paths must be short
    (folder / "containers.conf").write_text(PODMAN)
    address = f"unix://{folder}/socket"
    # Services that share the folder of their locks wait for each other.
    own = ["--root", folder / "root", "--runroot", folder / "run", "--tmpdir", folder / "locks"]
    command = ["podman", *own, "system", "service", "--time", "0", address]
    service = subprocess.Popen(command, env={**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")})
    deadline = time.monotonic() + 30
    while not (folder / "socket").exists():
        assert time.monotonic() < deadline, "podman did not start"
        time.sleep(0.05)
    yield address
    service.terminate()
    service.wait()
    left = str(folder / "root/overlay")  # podman leaves a mount behind
    while f" {left} " in Path("/proc/self/mounts").read_text():
        subprocess.run(["umount", left], check=True)
    shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider(request, provider_name) -> AsyncIterator[BoxProvider]:
    async with AsyncExitStack() as stack:
        options = {"address": request.getfixturevalue("podman")} if provider_name == "podman" else {}
        if provider_name == "remote":
            daemon = await stack.enter_async_context(serving(ByHand(), boxes="rootfs", box_network="public"))
            options = {"address": str(daemon.base_url)}
        provider = boxes.create(provider_name, **options)
        await provider.open()
        stack.push_async_callback(provider.close)
        yield provider


@pytest.fixture
def spec(tree) -> BoxSpec:
    return BoxSpec(image=Image(tree=tree), storage_mb=64, memory_mb=256, processes=64)


@pytest_asyncio.fixture(loop_scope="module")
async def box(provider, spec) -> AsyncIterator[Box]:
    box = await provider.start(spec)
    yield box
    await box.stop()
