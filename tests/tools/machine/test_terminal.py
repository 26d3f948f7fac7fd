"""The terminal of a box: keys go in, and the screen is what a person would see."""

import asyncio
import math
from types import SimpleNamespace

import pytest

from agentloop.boxes.interface.box import ProgramEndedError
from agentloop.tools.machine.terminal import Terminal, pressed
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ("ls -l\n", "ls -l\r"),
        ("<C-c>", "\x03"),
        ("<C-d><Esc>:q!<Enter>", "\x04\x1b:q!\r"),
        ("<Up><DOWN><PageUp>", "\x1b[A\x1b[B\x1b[5~"),
        ("if a<b> then <nothing> <C-[>", "if a<b> then <nothing> \x1b"),
        ("#include <stdio.h>\r\n", "#include <stdio.h>\r"),
    ],
)
def test_names_of_keys(keys, sent):
    assert pressed(keys) == sent


@pytest.fixture
def sessions(box):
    tools = Toolset([Terminal()])
    return tools.sessions("t", {}, 0, env=SimpleNamespace(box=box, agent_user=None, deadline=math.inf))


async def _type(sessions, keys, **arguments):
    call = ToolCall("terminal", {"keys": keys, **arguments}, "1")
    return await sessions.call(call, asyncio.get_running_loop().time() + 1e6)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_shell_on_a_screen(sessions):
    await _type(sessions, "cd /srv; PS1='> '; clear\n")
    shown = (await _type(sessions, "echo one; seq 3 | sort -r\n")).content
    assert shown.splitlines()[-6:] == ["> echo one; seq 3 | sort -r", "one", "3", "2", "1", ">"]
    assert (await _type(sessions, "clear\n")).content == ">"
    await _type(sessions, "printf 'a\\nb\\n' > file; vi file\n", wait=2.0)
    screen = (await _type(sessions, "Gofirst<Esc>", wait=2.0)).content
    assert screen.splitlines()[:4] == ["a", "b", "first", "~"]
    await _type(sessions, ":wq\n", wait=2.0)
    shown = (await _type(sessions, "clear; cat file\n")).content
    assert shown.splitlines() == ["a", "b", "first", ">"]
    await sessions.close()


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_programs_are_interrupted_and_waited_for(sessions, box):
    await _type(sessions, "PS1='> '; clear\n")
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await _type(sessions, "sleep 5511\n", wait=1.0)
    assert loop.time() - begin < 5
    assert "sleep 5511" in (await box.exec("ps")).stdout
    assert (await _type(sessions, "<C-c>")).content.splitlines()[-1] == ">"
    assert "sleep 5511" not in (await box.exec("ps")).stdout
    result = await _type(sessions, "exit\n")
    assert result.content.endswith("[the shell has ended]")
    await sessions.close()


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_box_that_ends_ends_the_episode(sessions, box):
    await _type(sessions, "true\n")
    await box.stop()
    result = await _type(sessions, "true\n")
    assert "has ended, and its files are lost" in result.content
    await sessions.close()


async def test_a_shell_that_takes_no_keys_has_ended():
    class Process:
        async def read(self):
            await asyncio.Event().wait()

        async def write(self, data):
            raise ProgramEndedError("The program has ended, so nothing can be written to it.")

        async def wait(self):
            return 0

        async def kill(self): ...

    async def spawn(*_, **__):
        return Process()

    box = SimpleNamespace(spawn=spawn)
    env = SimpleNamespace(box=box, agent_user=None, deadline=math.inf)
    sessions = Toolset([Terminal()]).sessions("t", {}, 0, env=env)
    assert (await _type(sessions, "ls\n")).content == "[the shell has ended]"
    await sessions.close()
