"""The last output of a world is read, however it ended."""

import asyncio
import json
import os
import socket
import subprocess

import pytest

from agentloop.sandboxes.worlds.world import BrokenWorldError, PidFd, World

pytestmark = pytest.mark.slow

BROKEN = json.dumps({"broken": b"no process can be started".hex()}).encode()
READY = json.dumps({"ready": True}).encode()


@pytest.fixture
def sleeping():
    """A descriptor of a process, in place of the first one of a world."""
    process = subprocess.Popen(["sleep", "600"])
    yield os.pidfd_open(process.pid)
    process.kill()
    process.wait()


async def _world(fd: int) -> tuple[World, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    world = World(ours, PidFd(fd))
    theirs.send(READY)
    await world.ready(5.0)
    return world, theirs


async def test_a_world_that_ends_with_a_request_unread_still_says_why(sleeping):
    """Linux reports the reset of the connection before the messages that came before it."""
    world, theirs = await _world(sleeping)
    step = world.start("python", {}, timeout=5.0, limits={})
    theirs.send(BROKEN)
    theirs.close()
    with pytest.raises(BrokenWorldError, match="no process can be started"):
        await step.end()
    await world.dead()


async def test_a_request_to_a_world_that_has_ended_says_why(sleeping):
    world, theirs = await _world(sleeping)
    theirs.send(BROKEN)
    theirs.close()
    with pytest.raises(BrokenWorldError, match="no process can be started"):
        world.start("python", {}, timeout=5.0, limits={})
    await world.dead()


async def test_a_step_that_is_killed_in_a_world_that_has_ended_says_why(sleeping):
    world, theirs = await _world(sleeping)
    step = world.start("python", {}, timeout=5.0, limits={})
    theirs.recv(65536)
    theirs.send(BROKEN)
    theirs.close()
    step.kill()
    with pytest.raises(BrokenWorldError, match="no process can be started"):
        await asyncio.wait_for(step.end(), 5.0)
    await world.dead()
