"""Features of boxes without an engine that others lack, and their refusals."""

import os
from dataclasses import replace

import pytest

from agentloop.boxes import Image
from tests.boxes.processes import running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest.fixture(scope="module")
def provider_name():
    return "rootfs"


async def test_root_of_the_box_is_nobody_outside(box):
    await box.exec("echo 1 > /srv/file; chown worker /srv/file; sleep 48171 & sleep 0.2")
    owners = {os.stat(f"/proc/{pid}").st_uid for pid in running("sleep 48171")}
    assert len(owners) == 1
    assert owners.isdisjoint({0, os.geteuid(), 1000})
    assert (await box.exec("stat -c %U /srv/file")).stdout == "worker\n"


async def test_storage_is_limited_and_the_box_goes_on(box):
    result = await box.exec("head -c 200000000 /dev/zero > /srv/large; stat -c %s /srv/large")
    assert 60_000_000 < int(result.stdout) < 64 << 20
    assert result.stderr != ""
    await box.exec("rm /srv/large; echo ok > /srv/s")
    assert (await box.exec("cat /srv/s")).stdout == "ok\n"


async def test_commands_know_the_name_of_their_user(box):
    assert (await box.exec("echo $USER", user="1000")).stdout == "worker\n"


async def test_busybox_needs_no_image(provider, spec):
    box = await provider.start(replace(spec, image=Image(reference="builtin:busybox")))
    try:
        assert (await box.exec("ls / | tr '\\n' ' '; id -un", user="worker")).stdout.endswith("worker\n")
        assert (await box.exec("awk 'BEGIN { print 6 * 7 }' | sed s/4/5/")).stdout == "52\n"
    finally:
        await box.stop()
