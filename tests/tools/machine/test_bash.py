"""A shell and an editor of files in a box, as models use them."""

import asyncio
import math
import re
from types import SimpleNamespace

import pytest

from agentloop.errors import FailureKind
from agentloop.tools.machine.bash import Bash
from agentloop.tools.machine.edit import Edit
from agentloop.tools.machine.shell import Shell
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture
def sessions(box):
    tools = Toolset([Bash(timeout=1.0, max_output_bytes=1024), Edit()])
    return tools.sessions("t", {}, 0, env=SimpleNamespace(box=box, agent_user=None, deadline=math.inf))


async def _call(sessions, tool, **arguments):
    result = await sessions.call(ToolCall(tool, arguments, "1"), asyncio.get_running_loop().time() + 1e6)
    return result.content


async def test_the_shell_keeps_its_state(sessions):
    assert await _call(sessions, "bash", command="cd /srv; A=5") == ""
    assert await _call(sessions, "bash", command="pwd; echo $A; false") == "/srv\n5\n[exit code 1]"
    assert await _call(sessions, "bash", command="echo 'unclosed") != ""
    assert await _call(sessions, "bash", command="cat; echo $A") == "5"  # no input, and no next command as input
    assert await _call(sessions, "bash", command="echo a\necho b # c\ncat <<X\nd\nX") == "a\nb\nd"
    await sessions.close()


async def test_long_commands_are_interrupted_and_the_shell_lives(sessions):
    await _call(sessions, "bash", command="A=5; cd /srv")
    assert await _call(sessions, "bash", command="echo first; sleep 60") == "first\n[interrupted after 1 s]"
    assert await _call(sessions, "bash", command="echo $A; pwd") == "5\n/srv"
    await sessions.close()


async def test_a_command_that_ignores_interrupts_is_killed_with_the_shell(sessions):
    told = await _call(sessions, "bash", command="trap '' INT; while :; do :; done")
    assert told == "[interrupted after 1 s]\n[the shell has ended; the next command starts a new one]"
    assert await _call(sessions, "bash", command="exit 3") == (
        "[the shell has ended; the next command starts a new one]"
    )
    assert await _call(sessions, "bash", command="echo here") == "here"
    await sessions.close()


async def test_the_middle_of_long_output_is_left_out(sessions):
    told = await _call(sessions, "bash", command="seq 10000")
    assert told.startswith("1\n2\n3\n")
    assert told.endswith("\n9999\n10000")
    assert "bytes left out]" in told
    assert len(told) < 1200
    await sessions.close()


async def test_a_shell_that_redirects_its_own_output_still_answers(sessions):
    assert await _call(sessions, "bash", command="A=5; exec >/srv/log 2>&1; echo hidden") == ""
    assert await _call(sessions, "bash", command="echo $A; cat /srv/log") == "5\nhidden"
    await sessions.close()


@pytest.mark.parametrize(
    ("tool", "arguments", "problem"),
    [
        ("bash", {"command": "echo \ud83d"}, "command: '\\ud83d' is half of a surrogate pair"),
        ("edit", {"command": "view", "path": "/srv/\ud83d"}, "path: '\\ud83d' is half of a surrogate pair"),
        ("edit", {"command": "view", "path": "/srv/a\0b"}, "path: a path contains no NUL character"),
        (
            "edit",
            {"command": "create", "path": "/srv/a", "file_text": "\ud83d"},
            "file_text: '\\ud83d' is half of a surrogate pair",
        ),
    ],
)
async def test_text_that_no_box_can_hold_is_a_wrong_argument(sessions, tool, arguments, problem):
    result = await sessions.call(ToolCall(tool, arguments, "1"), asyncio.get_running_loop().time() + 1e6)
    assert (result.content, result.failure) == (f"Wrong arguments for {tool!r}:\n{problem}", FailureKind.MODEL)
    await sessions.close()


async def test_files_are_shown_and_changed(sessions):
    assert await _call(sessions, "edit", command="create", path="/srv/new/a.txt", file_text="one\ntwo\n") == (
        "Wrote /srv/new/a.txt."
    )
    await _call(sessions, "edit", command="str_replace", path="/srv/new/a.txt", old_str="two", new_str="2\n3")
    await _call(sessions, "edit", command="insert", path="/srv/new/a.txt", insert_line=0, new_str="zero")
    assert await _call(sessions, "bash", command="cat /srv/new/a.txt") == "zero\none\n2\n3"
    assert await _call(sessions, "edit", command="view", path="/srv/new/a.txt", view_range=[2, 3]) == (
        "     2\tone\n     3\t2"
    )
    assert await _call(sessions, "edit", command="view", path="/srv/new") == "a.txt\n"
    refused = await _call(sessions, "edit", command="str_replace", path="/srv/new/a.txt", old_str="e", new_str="x")
    assert refused == "`old_str` occurs 2 times in /srv/new/a.txt, not once: nothing was changed."
    assert "cannot be read" in await _call(sessions, "edit", command="view", path="/srv/none")
    await sessions.close()


async def test_output_may_come_together_with_the_end_of_a_command():
    class Process(_Shell):
        async def write(self, data):
            if mark := re.search(rb"printf '.n(\w+)", data):
                self.output = b"of the command\n\n" + mark[1] + b" 3\nof another program\n"

        async def read(self):
            return self.output

    shell = Shell(SimpleNamespace(spawn=lambda *_, **__: _done(Process())))
    first, second = await shell.run("server &", 60.0), await shell.run("true", 60.0)
    assert (first.return_code, first.output) == (3, "of the command\n")
    assert second.output == "of another program\nof the command\n"


async def test_output_of_background_programs_belongs_to_the_next_command(sessions):
    assert "x" in await _call(sessions, "bash", command="while :; do echo x; done & sleep 0.2")
    assert (await _call(sessions, "bash", command="kill %1; echo done")).endswith("done")
    await sessions.close()


async def test_a_shell_that_ended_between_two_commands_starts_again(sessions):
    shell = await _call(sessions, "bash", command="echo $$")
    await _call(sessions, "bash", command=f"(sleep 0.1; kill -9 {shell}) & sleep 0.01")
    await asyncio.sleep(0.5)
    assert await _call(sessions, "bash", command="echo here") == (
        "here\n[the shell had ended since the last command; this command ran in a new one]"
    )
    assert await _call(sessions, "bash", command="echo again") == "again"
    await sessions.close()


async def test_the_end_of_a_shell_is_noticed_while_its_programs_run():
    process = _Shell()
    shell = Shell(SimpleNamespace(spawn=lambda *_, **__: _done(process)))
    result = await asyncio.wait_for(shell.run("server & exit", seconds=60.0), 10.0)
    assert (result.timed_out, result.shell_ended) == (False, True)


class _Shell:
    """A shell that has ended, and whose output another program holds open."""

    async def write(self, data): ...

    async def read(self):
        await asyncio.Event().wait()

    async def wait(self):
        return 0

    async def kill(self): ...


async def _done(value):
    return value


async def test_only_newlines_end_lines(sessions):
    text = "a\n\x0cb\u2028c\rd\ne"
    await _call(sessions, "edit", command="create", path="/srv/lines", file_text=text)
    assert await _call(sessions, "edit", command="view", path="/srv/lines") == (
        "     1\ta\n     2\t\x0cb\u2028c\rd\n     3\te"
    )
    await _call(sessions, "edit", command="insert", path="/srv/lines", insert_line=2, new_str="new")
    assert await _call(sessions, "edit", command="view", path="/srv/lines", view_range=[2, 4]) == (
        "     2\t\x0cb\u2028c\rd\n     3\tnew\n     4\te"
    )
    await sessions.close()
