"""Code that wants to live on, to kill others, or to end in strange ways."""

import asyncio

import pytest

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


async def test_daemon_dies_with_the_execution(box):
    code = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        os.execv("/bin/sleep", ["daemon_8812", "1000"])
    os._exit(0)
print("main is done")
"""
    result = await box.run(code)
    assert result.stdout == "main is done\n"
    assert result.seconds < 10
    await asyncio.sleep(1.0)
    assert box.processes("daemon_8812") == {}


async def test_child_holding_stdout_does_not_delay_the_result(box):
    result = await box.run("import subprocess; subprocess.Popen(['sleep', '60']); print('done')")
    assert result.stdout == "done\n"
    assert result.seconds < 10


async def test_children_that_fork_while_killed_all_die(box):
    code = """
import os, signal
starting, started = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        os.close(started)
        os.read(starting, 1)  # until all four exist, for they leave no room for another process
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            try:
                if os.fork() == 0 and os.fork() == 0:
                    os.execv("/bin/sleep", ["runaway_6114", "1000"])
            except OSError:
                pass
os.close(started)
import time; time.sleep(0.3)
"""
    assert (await box.run(code)).return_code == 0
    await asyncio.sleep(0.5)
    assert box.processes("runaway_6114") == {}


@pytest.mark.parametrize("number", [9, 15, 19])
@pytest.mark.parametrize("target", ["-1", "1", "os.getppid()"])
async def test_kill_reaches_only_its_own_sandbox(box, target, number):
    neighbour = asyncio.create_task(box.run("import time; time.sleep(0.5); print('alive')"))
    await box.run(f"import os\nos.kill({target}, {number})", timeout=3.0)
    assert (await neighbour).stdout == "alive\n"
    assert (await box.run("print('next')")).stdout == "next\n"


@pytest.mark.claim("/proc")
async def test_other_processes_are_not_visible(box):
    code = """
import os
own = {os.getpid(), os.getppid(), 1}
print({int(name) for name in os.listdir("/proc") if name.isdigit()} <= own)
for pid in own - {os.getpid()}:
    for name in ("environ", "mem", "maps", "root/etc/shadow", "cwd", "fd", "syscall", "stack"):
        try:
            path = f"/proc/{pid}/{name}"
            print(pid, name, os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(100))
        except OSError:
            pass
"""
    result = await box.run(code)
    assert result.stderr == ""
    visible, *rest = result.stdout.splitlines()
    assert visible == "True"
    assert [line for line in rest if not line.endswith(" b''")] == []


@pytest.mark.parametrize("target", ["os.getppid()", "1"])
async def test_other_processes_cannot_be_traced(box, target):
    code = f"""
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
for call in (lambda: libc.ptrace(16, {target}, 0, 0), lambda: libc.process_vm_readv({target}, 0, 0, 0, 0, 0)):
    print(call(), errno.errorcode[ctypes.get_errno()])
"""
    assert (await box.run(code)).stdout == "-1 EPERM\n-1 EPERM\n"


async def test_cancelled_executions_end(box):
    sleep = "import os; os.execv('/bin/sleep', ['cancelled_5519', '1000'])"
    task = asyncio.create_task(box.run(sleep, timeout=900))
    async with asyncio.timeout(20):
        while not box.processes("cancelled_5519"):  # noqa: ASYNC110 - nothing tells when it runs
            await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert box.processes("cancelled_5519") == {}
    assert (await box.run("print(1)")).stdout == "1\n"


@pytest.mark.parametrize(
    ("code", "return_code"),
    [
        ("import os; os.kill(os.getpid(), 15)", 143),
        ("import os; os.abort()", 134),
        ("import ctypes; ctypes.string_at(0)", 139),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import sys; sys.exit('why')", 1),
        ("import sys; sys.exit(None)", 0),
        ("import sys; sys.exit(300)", 44),
        ("import sys; sys.exit(-1)", 255),
        ("import threading\nthreading.Thread(target=exit, args=(5,)).start()", 0),
        ("raise BaseException", 1),
        ("raise KeyboardInterrupt", 130),
    ],
)
async def test_every_kind_of_exit_is_reported(box, code, return_code):
    result = await box.run(code)
    assert result.return_code == return_code
    assert not result.timed_out
    assert not result.oom


async def test_exit_handlers_run(box):
    code = """
import atexit, os, sys, threading, time
atexit.register(print, "atexit")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
class Last:
    def __del__(self): os.write(1, b"")
last = Last()
print("main")
"""
    assert (await box.run(code)).stdout == "main\nthread\natexit\n"


async def test_early_exit_cannot_fake_completion(box):
    result = await box.run("import os; print('started', flush=True); os._exit(0)\nprint('all tests passed')")
    assert (result.stdout, result.return_code) == ("started\n", 0)


async def test_forked_child_does_not_end_the_program(box):
    code = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('parent' if pid else 'child')"
    assert (await box.run(code)).stdout == "child\nparent\n"


@pytest.mark.parametrize(
    "sabotage",
    [
        "import sys; sys.modules.clear()",
        "import builtins; builtins.__dict__.clear()",
        "import os; os._exit = os.kill = os.waitpid = os.close = None",
        "import sys; sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = object()",
        "import threading; threading._shutdown = lambda: 1 / 0",
        "import atexit; atexit.register(lambda: 1 / 0)",
        "import sys; sys.excepthook = lambda *_: 1 / 0; 1 / 0",
        "import sys; sys.settrace(lambda *_: 1 / 0)",
        "import gc, sys\nfor o in gc.get_objects():\n    if isinstance(o, dict) and o is not globals(): o.clear()",
        "import os; os.closerange(0, 1000)",
        "import os\nos.close(0); os.close(1); os.close(2)\nos.execv('/bin/true', ['true'])",
    ],
)
async def test_interpreter_sabotage_affects_only_itself(box, sabotage):
    result = await box.run(sabotage, timeout=5.0)
    assert not result.timed_out
    clean = await box.run("import json, os, sys; print(json.dumps({'pid': os.getpid() > 0}), sys.gettrace())")
    assert (clean.stdout, clean.stderr) == ('{"pid": true} None\n', "")


async def test_harness_objects_give_no_access_outside(box):
    code = """
import gc, socket, sys
print(sys._getframe().f_back is None or sys._getframe().f_back.f_code.co_filename != __file__)
for thing in gc.get_objects():
    if isinstance(thing, socket.socket) and thing.fileno() >= 0:
        print("socket", thing)
    if isinstance(thing, (bytes, str)) and len(thing) > 1_000_000:
        print("data", thing[:100])
"""
    result = await box.run(code)
    assert (result.stdout, result.stderr) == ("True\n", "")
