"""Boxes of daemons: several daemons, and the death of client or daemon."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from agentloop import boxes
from agentloop.boxes import BoxLostError, BoxSpec, Image
from agentloop.errors import UserError
from tests.boxes.processes import running
from tests.tools.serving.conftest import ByHand, serving

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

SPEC = BoxSpec(image=Image(reference="builtin:busybox"), memory_mb=128, storage_mb=16)
CLIENT = """
import asyncio, sys
from agentloop import boxes

async def main():
    provider = boxes.create("remote", address=sys.argv[1], lease_seconds=2.0)
    await provider.open()
    box = await provider.start(boxes.BoxSpec(image=boxes.Image(reference="builtin:busybox"), storage_mb=16))
    await box.exec("sleep 8821 & true")
    await box.exec("sleep 8822", on_output=print, timeout=600) if len(sys.argv) > 2 else print("open", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def connected(stack, *daemons, **options):
    provider = boxes.create("remote", address=[str(daemon.base_url) for daemon in daemons], **options)
    await provider.open()
    stack.push_async_callback(provider.close)
    return provider


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)


async def test_boxes_spread_over_daemons_and_wait_for_room():
    async with AsyncExitStack() as stack:
        daemons = [
            await stack.enter_async_context(serving(ByHand(), boxes="rootfs", max_boxes=count)) for count in (1, 2)
        ]
        provider = await connected(stack, *daemons)
        started = [await provider.start(SPEC) for _ in range(3)]
        assert [len(each.daemon.boxes) for each in daemons] == [1, 2]
        waiting = asyncio.ensure_future(provider.start(SPEC))
        copying = asyncio.ensure_future(started[0].fork())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert not copying.done()
        for box in started[1:]:
            await box.stop()
        assert (await (await waiting).exec("echo 1")).stdout == "1\n"
        copying.cancel()


async def test_daemons_that_are_full_for_too_long_are_an_error():
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(serving(ByHand(), boxes="rootfs", max_boxes=1))
        provider = await connected(stack, daemon, patience=0.0)
        await provider.start(SPEC)
        with pytest.raises(boxes.BoxError, match="1 boxes are open, which is the maximum"):
            await provider.start(SPEC)


async def test_a_daemon_that_is_down_is_left_out():
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(serving(ByHand(), boxes="rootfs"))
        provider = boxes.create("remote", address=f"http://127.0.0.1:9, {daemon.base_url}")
        await provider.open()
        stack.push_async_callback(provider.close)
        await provider.prepare(SPEC.image)
        for _ in range(2):
            assert (await (await provider.start(SPEC)).exec("echo 1")).stdout == "1\n"


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"boxes": "rootfs", "token": "another-long-token-here"}, "token is missing or wrong"), ({}, "serves no boxes")],
)
async def test_a_daemon_that_serves_no_boxes_is_one_clear_error(settings, text):
    async with serving(ByHand(), **settings) as daemon:
        with pytest.raises(UserError, match=text):
            await boxes.create("remote", address=str(daemon.base_url)).open()


async def test_no_daemon_at_all_is_one_clear_error():
    with pytest.raises(UserError, match=r"No daemon that serves boxes answers. Start one with `agentloop tools serve"):
        await boxes.create("remote", address="http://127.0.0.1:9").open()
    with pytest.raises(UserError, match="needs the `address` of a daemon"):
        boxes.create("remote")


async def test_the_address_can_come_from_the_environment(monkeypatch):
    async with serving(ByHand(), boxes="rootfs") as daemon, AsyncExitStack() as stack:
        monkeypatch.setenv("AGENTLOOP_BOXES", str(daemon.base_url))
        provider = boxes.create("remote")
        await provider.open()
        stack.push_async_callback(provider.close)
        assert (await (await provider.start(SPEC)).exec("echo 1")).stdout == "1\n"


async def test_a_reader_that_gives_up_loses_no_output():
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(serving(ByHand(), boxes="rootfs"))
        box = await (await connected(stack, daemon)).start(SPEC)
        process = await box.spawn("while read -r line; do echo $line; done")
        output = b""
        for number in range(30):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001 * (number % 7)):
                    output += await process.read()
            await process.write(b"%d\n" % number)
        await process.close_stdin()
        while piece := await process.read():
            output += piece
        assert output.split() == [b"%d" % number for number in range(30)]
        assert await process.wait() == 0


async def test_a_dockerfile_is_refused(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    async with AsyncExitStack() as stack:
        provider = await connected(stack, await stack.enter_async_context(serving(ByHand(), boxes="rootfs")))
        with pytest.raises(UserError, match=r"cannot build the Dockerfile of .*: build it, and name the image"):
            await provider.prepare(Image(dockerfile=tmp_path))


async def test_a_refused_limit_is_named():
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(serving(ByHand(), boxes="rootfs"))
        provider = await connected(stack, daemon)
        with pytest.raises(UserError, match=r"answers: processes: Input should be less than or equal to 65536"):
            await provider.start(replace(SPEC, processes=100_000))
        box = await provider.start(SPEC)
        with pytest.raises(UserError, match=r"answers: timeout: Input should be greater than 0"):
            await box.exec("true", timeout=-1)


@pytest.mark.parametrize("while_a_command_runs", [False, True])
async def test_nothing_is_left_of_a_client_that_was_killed(while_a_command_runs):
    async with serving(ByHand(), boxes="rootfs") as daemon:
        more = ["command"] if while_a_command_runs else []
        client = subprocess.Popen(  # noqa: ASYNC220 - it is killed soon
            [sys.executable, "-c", CLIENT, str(daemon.base_url), *more], stdout=subprocess.DEVNULL
        )
        try:
            await until(lambda: running("sleep 8822" if while_a_command_runs else "sleep 8821"))
        finally:
            client.kill()
            client.wait()
        await until(lambda: running("sleep 882") == [])
        assert len(daemon.daemon.boxes) == 0


async def test_boxes_of_a_killed_daemon_are_lost_and_nothing_of_them_is_left():
    command = [sys.executable, "-m", "agentloop.tools", "serve", "--port", "0", "--boxes", "rootfs"]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # noqa: ASYNC220
    try:
        address = (await asyncio.to_thread(daemon.stdout.readline)).split()[-1]
        provider = boxes.create("remote", address=address)
        await provider.open()
        box = await provider.start(SPEC)
        command = asyncio.ensure_future(box.exec("sleep 8831"))
        await until(lambda: running("sleep 8831"))
        daemon.send_signal(signal.SIGKILL)
        with pytest.raises(BoxLostError, match=f"The box {box.id} has ended, and its files are lost"):
            await command
        with pytest.raises(BoxLostError):
            await box.exec("true")
        await until(lambda: running("sleep 8831") == [])
        await provider.close()
    finally:
        daemon.kill()
        daemon.wait()
        daemon.stdout.close()
