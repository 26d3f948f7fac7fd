"""Sessions: cells that share a Python, at every level."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.interface.sandbox import (
    CellResult,
    Execution,
    Sandbox,
    SandboxBusyError,
    Session,
    SessionSettings,
)
from agentloop.sandboxes.levels.bubblewrap import Bubblewrap
from agentloop.sandboxes.levels.none import NoIsolation
from agentloop.sandboxes.levels.slots import Slots
from agentloop.sandboxes.worlds.cells import parse

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

LEVELS = {
    "slots": lambda: Slots(slots=2, packages=["matplotlib", "pillow"], disk_mb=64),
    "bubblewrap": lambda: Bubblewrap(slots=2, packages=["matplotlib", "pillow"], disk_mb=64),
    "none": lambda: NoIsolation(slots=2),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=LEVELS)
async def sandbox(request) -> AsyncIterator[Sandbox]:
    sandbox = LEVELS[request.param]()
    await sandbox.start()
    yield sandbox
    await sandbox.close()


@pytest_asyncio.fixture(loop_scope="module")
async def session(sandbox: Sandbox) -> AsyncIterator[Session]:
    session = await sandbox.session()
    yield session
    await session.close()


@pytest_asyncio.fixture(loop_scope="module")
async def session_and_pid() -> AsyncIterator[tuple[Session, int]]:
    """Yield a session whose Python is an ordinary process of this machine, and the number of this process."""
    sandbox = NoIsolation(slots=1)
    await sandbox.start()
    session = await sandbox.session()
    yield session, int(await shown(session, "import os; os.getpid()"))
    await session.close()
    await sandbox.close()


async def shown(session: Session, code: str, **options) -> str:
    result = await session.run(code, **options)
    assert result.ok, result
    return "".join(str(display["text/plain"]) for display in result.displays)


async def test_cells_share_definitions(session):
    assert await shown(session, "import math\nx = 3\ndef f(y): return x * y") == ""
    assert await shown(session, "x = 4\nf(5), math.floor(2.5)") == "(20, 2)"
    assert await shown(session, "_[0] + 1") == "21"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("None", ""),
        ("y = 3", ""),
        ("", ""),
        ("# nothing", ""),
        ("1; 2", "2"),
        ("(\n'a'\n'b')", "'ab'"),
        ("for i in range(3):\n    i", ""),
        ("'é\\ud800'", "'é\\ud800'"),
        ("from __future__ import annotations\ndef f(x: Later): pass\nf.__annotations__", "{'x': 'Later'}"),
        ("import asyncio\nawait asyncio.sleep(0.001)\n7", "7"),
        ("async def g():\n    return 8\nawait g()", "8"),
        ("__name__", "'__main__'"),
    ],
)
async def test_last_expression_is_shown(session, code, value):
    assert await shown(session, code) == value


async def test_outputs_belong_to_their_cell(session):
    first = await session.run("import sys, os; print('a'); print('b', file=sys.stderr); os.system('echo c')")
    assert (first.stdout, first.stderr) == ("a\nc\n", "b\n")
    second = await session.run("print('d')")
    assert (second.stdout, second.stderr, second.displays) == ("d\n", "", ())
    assert 0 < second.seconds < 10


async def test_background_output_does_not_reach_the_next_cell(session):
    late = "import subprocess, time\nprogram = subprocess.Popen('sleep 0.2; echo late', shell=True)"
    assert (await session.run(late)).stdout == ""
    assert (await session.run("time.sleep(0.5); print('own')")).stdout == "own\n"


async def test_error_shows_cell_lines_and_keeps_the_session(session):
    await session.run("def f():\n    # a comment\n    return 1 / 0")
    error = (await session.run("f()")).error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    text = "\n".join(error.traceback)
    assert 'File "<cell 2>", line 1, in <module>\n    f()' in text
    assert 'File "<cell 1>", line 3, in f\n    return 1 / 0' in text
    assert text.count("File ") == 2
    assert await shown(session, "5") == "5"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("x = (", "SyntaxError"),
        ("\0", "SyntaxError"),
        ("input()", "EOFError"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("exit()", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("class Bad(Exception):\n    def __str__(self): 1 / 0\nraise Bad", "Bad"),
        ("class Bad:\n    def __repr__(self): 1 / 0\nBad()", "ZeroDivisionError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("raise ValueError('x' * 10_000_000)", "ValueError"),
    ],
)
async def test_all_kinds_of_errors_are_reported(session, code, name):
    result = await session.run(code)
    assert result.error.name == name
    assert not any("agentloop" in line for line in result.error.traceback)
    assert sum(map(len, result.error.traceback)) < 200_000
    assert await shown(session, "'alive'") == "'alive'"


async def test_cell_timeout_keeps_the_session(session):
    await session.run("x = 1")
    result = await session.run("print('partial')\nwhile True: x += 1", max_seconds=0.3)
    assert result.timed_out
    assert result.error.name == "KeyboardInterrupt"
    assert result.stdout == "partial\n"
    assert 0.2 < result.seconds < 5
    assert await shown(session, "x > 1") == "True"


async def test_cell_that_ignores_the_interrupt_ends_the_session(session):
    start = time.monotonic()
    result = await session.run("import signal; signal.signal(2, signal.SIG_IGN)\nwhile True: pass", max_seconds=0.3)
    assert result.timed_out
    assert result.session_ended == "killed"
    assert time.monotonic() - start < 10
    with pytest.raises(SandboxError, match="over"):
        await session.run("1")


async def test_cell_that_is_interrupted_before_it_begins_keeps_the_session(session_and_pid):
    session, pid = session_and_pid
    await session.run("x = 6")
    os.kill(pid, signal.SIGSTOP)  # as if the machine were busy
    asyncio.get_running_loop().call_later(1.0, os.kill, pid, signal.SIGCONT)
    result = await session.run("x = 7", max_seconds=0.3)
    assert result.timed_out
    assert result.error.name == "KeyboardInterrupt"
    assert await shown(session, "x") == "6"


async def test_pause_of_the_machine_does_not_end_the_session(session_and_pid):
    session, pid = session_and_pid
    call_later = asyncio.get_running_loop().call_later

    def pause() -> None:
        time.sleep(2.5)  # blocks this process, too
        os.kill(pid, signal.SIGCONT)

    call_later(0.2, os.kill, pid, signal.SIGSTOP)
    call_later(0.4, pause)
    result = await session.run("while True: pass", max_seconds=0.3)
    assert result.timed_out
    assert result.error.name == "KeyboardInterrupt"
    assert await shown(session, "6") == "6"


async def test_interrupt_after_the_end_of_a_cell_does_not_reach_the_next(session_and_pid):
    session, pid = session_and_pid
    await session.run("import signal; signal.signal(2, signal.default_int_handler)")
    os.kill(pid, signal.SIGINT)
    await asyncio.sleep(0.2)
    assert await shown(session, "6") == "6"


async def test_interrupt_ends_the_cell(session):
    await session.interrupt()  # nothing runs: nothing happens
    running = asyncio.create_task(session.run("x = 2\nimport time; time.sleep(60)", max_seconds=100))
    await asyncio.sleep(0.3)
    await session.interrupt()
    result = await running
    assert result.error.name == "KeyboardInterrupt"
    assert not result.timed_out
    assert await shown(session, "x") == "2"


async def test_cancelled_caller_interrupts_its_cell(session):
    running = asyncio.create_task(session.run("y = 3\nwhile True: pass", max_seconds=100))
    await asyncio.sleep(0.3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await shown(session, "y") == "3"


async def test_next_cell_waits_for_a_cell_that_timed_out_before_its_caller_was_cancelled(session):
    code = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: time.sleep(1); y = 5"
    running = asyncio.create_task(session.run(code, max_seconds=0.3))
    await asyncio.sleep(0.6)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await shown(session, "y") == "5"


async def test_cells_run_one_at_a_time(session):
    results = await asyncio.gather(
        *[session.run(f"import time; start = time.time(); time.sleep(0.02); print({n})") for n in range(8)]
    )
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(8)]


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os._exit(3)", "exited"),
        ("import os; os.kill(os.getpid(), 9)", "killed"),
        ("import ctypes; ctypes.string_at(0)", "killed"),
        ("import os; os.closerange(3, 100)", "exited"),
    ],
)
async def test_session_end_reasons_are_reported(session, code, how):
    result = await session.run(code)
    assert result.session_ended == how
    assert not result.ok
    with pytest.raises(SandboxError, match="over"):
        await session.run("1")


async def test_forked_child_does_not_become_a_second_session(session):
    result = await session.run("import os, time\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint(pid > 0)")
    assert sorted(result.stdout.split()) == ["False", "True"]
    assert await shown(session, "6") == "6"


async def test_files_are_written_and_read(sandbox):
    session = await sandbox.session(SessionSettings(files={"a.txt": b"one"}))
    await session.write_files({"deep/b.bin": bytes(range(256)), "a.txt": b"two"})
    assert await shown(session, "open('a.txt').read(), len(open('deep/b.bin', 'rb').read())") == "('two', 256)"
    await session.run("open('c', 'w').write('three'); import os; os.mkfifo('pipe')")
    asked = ["c", "deep/b.bin", "none", "deep", "pipe", "/dev/zero", "/proc/self/mem"]
    assert await session.read_files(asked) == {"c": b"three", "deep/b.bin": bytes(range(256))}
    assert await session.read_files(asked, limit=100) == {"c": b"three"}
    with pytest.raises(UserError, match="relative"):
        await session.write_files({"../x": b""})
    await session.close()


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), True])
async def test_invalid_timeouts_raise(session, bad):
    with pytest.raises(UserError, match="max_seconds"):
        await session.run("1", max_seconds=bad)


async def test_output_is_limited(sandbox):
    session = await sandbox.session(SessionSettings(output_bytes=1000, display_bytes=1000))
    result = await session.run("print('x' * 3_000_000)\n'y' * 5000")
    assert len(result.stdout) == 1000
    assert result.displays == ()
    assert result.output_truncated
    assert not (await session.run("print('fine')\n'z'")).output_truncated
    await session.close()


async def test_rich_displays_are_returned(session):
    code = """
from PIL import Image
class Table:
    def _repr_html_(self): return "<table>"
    def _repr_png_(self): raise ValueError
display(1, Table())
Image.new("RGB", (4, 4))
"""
    one, table, image = (await session.run(code)).displays
    assert one == {"text/plain": "1"}
    assert table["text/html"] == "<table>"
    assert set(table) == {"text/plain", "text/html"}
    assert image["image/png"].startswith(b"\x89PNG")


async def test_figures_are_shown_and_closed(session):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.figure(); plt.plot([2, 1]); plt.show()"
    result = await session.run(code, max_seconds=120)
    assert result.ok, result
    # On a busy machine matplotlib says that its first import takes long.
    assert result.stderr.removeprefix("Matplotlib is building the font cache; this may take a moment.\n") == ""
    images = [display["image/png"] for display in result.displays if "image/png" in display]
    assert [image[:4] for image in images] == [b"\x89PNG"] * 2
    assert await shown(session, "plt.get_fignums()") == "[]"


async def test_memory_limit_fails_the_cell_and_keeps_the_session(sandbox):
    session = await sandbox.session(SessionSettings(memory_mb=256))
    result = await session.run("x = bytearray(600 << 20)")
    assert result.oom
    assert result.error.name == "MemoryError"
    assert await shown(session, "len(bytearray(50 << 20))") == str(50 << 20)
    await session.close()


async def test_sessions_are_isolated(sandbox):
    one, two = await sandbox.session(), await sandbox.session()
    await one.run("x = 1; open('file', 'w').write('1')")
    assert one.id != two.id
    result = await two.run("import os; print(os.listdir())\nx")
    assert result.stdout == "[]\n"
    assert result.error.name == "NameError"
    await one.close()
    assert await shown(two, "8") == "8"
    await two.close()


async def test_sessions_use_no_slot_and_are_counted(sandbox):
    sessions = [await sandbox.session() for _ in range(3)]
    assert sandbox.load().sessions == 3
    assert (await sandbox.run(Execution(code="print(1)"), max_queue_seconds=20)).stdout == "1\n"
    for session in sessions:
        await session.close()
        await session.close()
    assert sandbox.load().sessions == 0


async def test_idle_session_ends(sandbox):
    session = await sandbox.session(SessionSettings(idle_seconds=0.5))
    for _ in range(3):
        await session.run("import time; time.sleep(0.3)")
    await asyncio.sleep(1.0)
    with pytest.raises(SandboxError, match=r"nothing ran in it for 0.5 s"):
        await session.run("1")
    assert sandbox.load().sessions == 0


async def test_session_count_is_limited():
    sandbox = NoIsolation(max_sessions=1)
    session = await sandbox.session()
    with pytest.raises(SandboxBusyError, match="1 sessions"):
        await sandbox.session()
    await session.close()
    await (await sandbox.session()).close()
    await sandbox.close()


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"{}\n", b"[]\n", b"\xff\n", b'{"display": [["a", 9]]}\n', b'{"display": [[1, 2]]}\nab', b"[" * 9999],
)
async def test_invalid_frames_show_nothing(data):
    what = parse(data)
    assert (what.displays, what.error) == ((), None)


async def test_raw_writes_cannot_break_the_result(session):
    code = """
import os
for fd in range(3, 20):
    try:
        os.write(fd, b'{"display": [["text/plain", 99999]]}')
    except OSError:
        pass
"""
    result: CellResult = await session.run(code)
    assert result.displays == ()
