"""Features of boxes without an engine that others lack, and their refusals."""

import asyncio
import os
from dataclasses import replace

import pytest

from agentloop.boxes import Image, Network
from tests.boxes.network.test_network import own_address
from tests.boxes.processes import boxes_of_this_process, running

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


@pytest.mark.parametrize("delay", [0, 0.001, 0.003, 0.01, 0.03])
async def test_a_start_that_is_cancelled_has_left_no_box_when_it_raises(provider, spec, delay):
    before = boxes_of_this_process()
    for _ in range(5):
        starting = asyncio.create_task(provider.start(spec))
        await asyncio.sleep(delay)
        starting.cancel()
        made = (await asyncio.gather(starting, return_exceptions=True))[0]
        if not isinstance(made, asyncio.CancelledError):
            await made.stop()
        assert boxes_of_this_process() == before


async def test_the_public_network_does_not_lead_to_this_machine(provider, spec):
    box = await provider.start(replace(spec, network=Network(mode="public")))
    try:
        for host in ("127.0.0.1", "localhost", own_address()):
            assert "403 Forbidden" in (await box.exec(f"wget -O- http://{host}:9/ 2>&1")).stdout
    finally:
        await box.stop()
