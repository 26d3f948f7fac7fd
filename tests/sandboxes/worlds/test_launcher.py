"""The process that starts sandboxes, and its owner's side."""

import socket
import subprocess
import sys

import pytest

from agentloop.errors import SandboxError
from agentloop.sandboxes.worlds import launcher
from agentloop.sandboxes.worlds.spawner import Spawner

pytestmark = pytest.mark.slow


def test_kill_of_an_ended_process_does_nothing():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        starter = launcher.Launcher(theirs, "bwrap")
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        starter.running[1] = ended.pid
        ours.send(launcher.REQUEST.pack(launcher.KILL, 1))
        assert starter.handle_request()


async def test_dead_launcher_raises_and_stays_unusable():
    spawner = await Spawner.start("/bin/true", [])
    spawner.process.kill()
    spawner.process.wait()
    with pytest.raises(SandboxError, match="accepts no request"):
        spawner.spawn(0, [1])
    assert not spawner.usable
    spawner.kill(1)
    await spawner.close()


async def test_kill_handles_a_dead_launcher():
    spawner = await Spawner.start("/bin/true", [])
    spawner.process.kill()
    spawner.process.wait()
    spawner.kill(1)
    assert not spawner.usable
    await spawner.close()
