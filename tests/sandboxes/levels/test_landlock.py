"""The level `landlock`: what code can do, and that nothing outlives an execution without a pid namespace."""

import asyncio
import contextlib
import errno
import os
import re
import sys
import sysconfig
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from agentloop.errors import UserError
from agentloop.sandboxes import Execution, ExecutionResult
from agentloop.sandboxes.inside.isolation import landlock as rules
from agentloop.sandboxes.levels import landlock as level
from agentloop.sandboxes.levels.landlock import Landlock
from agentloop.sandboxes.levels.landlock_filter import build_landlock_filter
from agentloop.sandboxes.worlds import boot

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def python() -> Iterator[None]:
    """Use the system's Python if the user of the code cannot reach the Python of root."""
    with pytest.MonkeyPatch.context() as patch:
        if os.geteuid() == 0 and not level.others_can_reach(boot.INTERPRETER):
            patch.setattr(boot, "INTERPRETER", os.path.realpath("/usr/bin/python3"))
            patch.setattr(sys, "base_prefix", "/usr")
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(python) -> AsyncIterator[Landlock]:
    sandbox = Landlock(slots=4, disk_mb=16, max_processes=24)
    await sandbox.start()
    yield sandbox
    await sandbox.close()


async def run(sandbox: Landlock, code: str, **options) -> ExecutionResult:
    return await sandbox.run(Execution(code=code, **{"timeout": 20.0, **options}))


async def attempt(sandbox: Landlock, code: str) -> str:
    """Return the value of an expression, or the name of its error number."""
    program = f"""
import ctypes, errno, os, resource, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
    return "done"
try:
    print({code})
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    result = await run(sandbox, program)
    assert not result.stderr
    return result.stdout.strip()


async def test_programs_run_in_their_own_directory(sandbox):
    code = "import os, sys; print(input(), open('a/b').read(), os.listdir()); open('c', 'w').write('out'); sys.exit(3)"
    result = await run(sandbox, code, stdin="in", files={"a/b": b"file"}, fetch_files=["c"])
    assert (result.stdout, result.return_code) == ("in file ['main.py', 'a']\n", 3)
    assert result.files == {"c": b"out"}


async def test_other_languages_compile_and_run(sandbox):
    assert (await run(sandbox, "echo $((6 * 7)) | cat", language="bash")).stdout == "42\n"
    code = '#include <cstdio>\nint main() { puts("42"); }'
    assert (await run(sandbox, code, language="cpp")).stdout == "42\n"


async def test_session_keeps_state(sandbox):
    session = await sandbox.session()
    await session.run("x = 6")
    assert (await session.run("x * 7")).displays == ({"text/plain": "42"},)
    await session.close()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open('/etc/passwd').read()", "EACCES"),
        ("open('/proc/self/environ').read()", "EACCES"),
        ("os.listdir('/')", "EACCES"),
        ("os.listdir('/proc')", "EACCES"),
        ("open('/usr/x', 'w')", "EACCES"),
        ("open('/tmp/x', 'w')", "EACCES"),
        ("open('/dev/shm/x', 'w')", "EACCES"),
        ("open('/dev/null', 'w').write('x')", "1"),
        ("os.link('/etc/passwd', 'passwd')", "EPERM|EXDEV"),
        ("os.symlink('/etc/passwd', 'link') or open('link')", "EACCES"),
        ("os.truncate('/etc/passwd', 0)", "EACCES"),
        ("os.mkfifo('fifo')", "None"),
        ("os.chmod('/usr', 0o777)", "EPERM"),
        ("os.chown('main.py', 0, 0)", "EPERM"),
        ("os.utime('/usr')", "EPERM"),
        ("os.setxattr('/usr', 'user.x', b'')", "EPERM"),
        ("os.setpriority(os.PRIO_USER, 0, 19)", "EPERM"),
        ("os.sched_setaffinity(os.getppid(), [0])", "EPERM"),
        ("len(os.sched_getaffinity(0)) > 0", "True"),
        ("resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)", "EPERM"),
        ("socket.socket(socket.AF_INET)", "EPERM"),
        ("socket.socket(socket.AF_UNIX)", "EPERM"),
        ("socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", "EPERM"),
        ("[pair[0].send(b'x') for pair in [socket.socketpair()]]", r"\[1\]"),
        ("call(29, 1, 4096, 0o1600)", "EPERM"),  # shmget
        ("call(254, 0, b'/', 1)", "EPERM"),  # inotify_add_watch
        ("call(101, 16, os.getppid(), 0, 0)", "EPERM"),  # ptrace
        ("call(272, 0x10000000)", "EPERM"),  # unshare
    ],
)
async def test_files_of_others_are_inaccessible(sandbox, code, expected):
    assert re.fullmatch(expected, await attempt(sandbox, code))


async def test_signals_cannot_reach_other_processes(sandbox):
    code = """
import os, signal
for victim in (os.getppid(), -1, 1):
    try:
        os.kill(victim, signal.SIGKILL if victim != -1 else 0)
        print("sent")
    except OSError as error:
        print(type(error).__name__)
child = os.fork()
if child == 0:
    signal.pause()
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    lines = (await run(sandbox, code)).stdout.splitlines()
    assert lines[0] == lines[2] == "PermissionError"
    assert lines[3] == "-15"


async def test_code_is_not_root_and_has_a_clean_environment(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    result = await run(sandbox, "import os; print(os.getuid(), os.getgroups(), 'SECRET_TOKEN' in os.environ)")
    user, rest = result.stdout.split(maxsplit=1)
    assert user != "0"
    if os.geteuid() == 0:
        assert rest == "[] False\n"


@pytest.mark.parametrize("ending", ["", "import time; time.sleep(100)"])
async def test_no_process_outlives_its_execution(sandbox, ending):
    code = f"""
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, ["left_5113", "-c", "import time; time.sleep(1000)"])
        os._exit(0)
{ending}
"""
    await run(sandbox, code, timeout=2)
    await _until(lambda: not _runs(b"left_5113"))


async def test_fork_bomb_is_contained(sandbox):
    code = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
    result = await run(sandbox, code, timeout=1)
    assert result.timed_out
    assert (await run(sandbox, "print(1)")).stdout == "1\n"


async def test_no_file_outlives_its_execution(sandbox):
    where = (await run(sandbox, "import os; open('left', 'w'); print(os.getcwd())")).stdout.strip()
    await _until(lambda: not os.path.exists(where))


async def test_memory_and_time_are_limited(sandbox):
    assert (await run(sandbox, "bytearray(1 << 30)", memory_mb=128)).oom
    assert (await run(sandbox, "while True: pass", timeout=0.5)).timed_out


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP])
async def test_missing_landlock_raises_with_the_reason(monkeypatch, number):
    monkeypatch.setattr(rules.libc, "syscall", lambda *_: -1, raising=False)
    monkeypatch.setattr(rules.ctypes, "get_errno", lambda: number)
    with pytest.raises(UserError, match=r"'landlock' does not work.*Linux 6.12.*lsm=landlock"):
        await Landlock().start()


async def test_old_landlock_version_is_named(monkeypatch):
    monkeypatch.setattr(rules, "abi", lambda: 4)
    with pytest.raises(UserError, match=r"has version 4"):
        await Landlock().start()


async def test_root_only_python_is_rejected_as_root(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tmp_path.chmod(0o700)
    monkeypatch.setattr(boot, "INTERPRETER", str(tmp_path / "python3"))
    with pytest.raises(UserError, match="Python below /usr"):
        await Landlock().start()


async def test_seccomp_filters_of_both_architectures():
    for machine in ("x86_64", "aarch64"):
        assert len(build_landlock_filter(machine)) % 8 == 0
    with pytest.raises(UserError, match="riscv64"):
        build_landlock_filter("riscv64")


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def _runs(name: bytes) -> bool:
    return any(_command(path).startswith(name) for path in Path("/proc").glob("[0-9]*/cmdline"))


def _command(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_no_program_can_restore_capabilities(sandbox):
    assert await attempt(sandbox, "libc.prctl(39, 0, 0, 0, 0)") == "1"  # PR_GET_NO_NEW_PRIVS
    if os.geteuid() == 0:  # another user's bounding set is full, and of no use
        bounding = "[number for number in range(41) if libc.prctl(23, number, 0, 0, 0) == 1]"  # PR_CAPBSET_READ
        assert await attempt(sandbox, bounding) == "[]"


async def test_directory_of_a_killed_sandbox_is_removed(sandbox):
    session = await sandbox.session()
    made = await session.run("import os; os.makedirs('/'.join('d' * 500)); print(os.getcwd())")
    directory = Path(made.stdout.strip())
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if Path(process.cwd()) == directory:
                process.kill()
    async with asyncio.timeout(60):
        while directory.exists():  # noqa: ASYNC110, ASYNC240 - nothing tells
            await asyncio.sleep(0.05)
    await session.close()


async def test_root_only_virtual_environment_works(python, tmp_path, monkeypatch):
    (tmp_path / "site-packages").mkdir()
    tmp_path.chmod(0o700)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "site-packages"))
    sandbox = Landlock(slots=1)
    await sandbox.start()
    assert (await run(sandbox, "print(6 * 7)")).stdout == "42\n"
    await sandbox.close()
