"""The level `landlock`: what code can do, and that nothing outlives an execution without a pid namespace."""

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import sys
import sysconfig
import tempfile
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
from agentloop.sandboxes.worlds import boot
from tests.support.nobody import NOBODY, run_as_nobody

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
    assert (await run(sandbox, "touch x && echo $((6 * 7)) | cat", language="bash")).stdout == "42\n"
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
        ("open('/tmp/of-agentloop-tests', 'w')", "EACCES"),
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


AS_OWNER = """
import asyncio, os, sys
from agentloop.sandboxes import Execution, create
async def main():
    assert os.geteuid() == 65534
    sandbox = create("landlock", slots=1, binds=[sys.argv[1]])
    result = await sandbox.run(Execution(code=open(sys.argv[2]).read(), timeout=30))
    print(result.stdout + result.stderr, end="")
    print((await sandbox.run(Execution(code="int main() { return 7; }", language="cpp"))).return_code)
    await sandbox.close()
asyncio.run(main())
"""
CHANGES = """
import ctypes, fcntl, os, platform, struct
libc = ctypes.CDLL(None, use_errno=True)
path = b"SHOWN"
file = os.open(path, os.O_RDONLY)
handle = os.open(path, os.O_PATH)
x86 = platform.machine() == "x86_64"
times = struct.pack("=4q", 1, 0, 1, 0)
attributes = struct.pack("=QIIIIQ", 0x40, 0, 0, 0, 0, 0)  # FS_XFLAG_NOATIME, in the form of file_setattr
value = struct.pack("=QII", ctypes.addressof(ctypes.create_string_buffer(b"x")), 1, 0)
calls = [
    (90, None, path, 0o4777), (91, 52, file, 0o4777), (268, 53, -100, path, 0o4777, 0),
    (452, 452, -100, path, 0o4777, 0),
    (452, 452, handle, b"", 0o4777, 0x1000), (268, 53, -100, b"/proc/self/fd/%d" % file, 0o4777, 0),
    (92, None, path, 65534, 65534), (93, 55, file, 65534, 65534), (94, None, path, 65534, 65534),
    (260, 54, -100, path, 65534, 65534, 0),
    (132, None, path, struct.pack("=2q", 1, 1)), (235, None, path, times), (261, None, -100, path, times),
    (280, 88, -100, path, times, 0), (280, 88, file, None, times, 0),
    (188, 5, path, b"user.x", b"x", 1, 0), (189, 6, path, b"user.x", b"x", 1, 0),
    (190, 7, file, b"user.x", b"x", 1, 0),
    (463, 463, -100, path, 0, b"user.x", value, 16),
    (197, 14, path, b"user.kept"), (198, 15, path, b"user.kept"), (199, 16, file, b"user.kept"),
    (466, 466, -100, path, 0, b"user.kept"),
    (469, 469, -100, path, attributes, len(attributes), 0), (469, 469, file, b"", attributes, len(attributes), 0x1000),
    (16, 29, file, 0x40086602, struct.pack("=l", 0x80)),
    (16, 29, file, 0x401C5820, struct.pack("=7I", 0x40, 0, 0, 0, 0, 0, 0)),
    (16, 29, file, 0x40087602, struct.pack("=l", 5)),
    (76, 45, path, 0), (77, 46, file, 0), (285, 47, file, 0, 0, 1 << 20),
    (72, 25, file, 1024, fcntl.F_RDLCK), (72, 25, file, 1036, struct.pack("=Q", 3)),
    (86, None, path, b"link"), (265, 37, -100, path, -100, b"link", 0), (265, 37, handle, b"", -100, b"link", 0x1000),
]
for one, other, *arguments in calls:
    number = one if x86 else other
    if number is not None:
        done = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
        if done >= 0:
            print("done:", number, arguments)
print("tried", len(calls))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def test_files_of_the_owner_cannot_be_changed(folder):
    """Without root, the kernel takes the code for the owner of files that it may only read."""
    (shown := folder / "shown").mkdir()
    (file := shown / "file").write_text("shown")
    os.setxattr(file, "user.kept", b"kept")
    (program := folder / "program").write_text(CHANGES.replace("SHOWN", str(file)))
    os.chown(file, NOBODY, NOBODY)
    before = _facts(file)
    process = await asyncio.to_thread(run_as_nobody, AS_OWNER, str(shown), str(program))
    assert (process.stdout, process.stderr) == ("tried 36\n7\n", "")
    assert _facts(file) == before


def _facts(file: Path) -> tuple[object, ...]:
    facts = file.stat()
    flags = bytearray(8)
    with file.open() as opened:
        fcntl.ioctl(opened, 0x80086601, flags)  # FS_IOC_GETFLAGS
    names = {name: os.getxattr(file, name) for name in os.listxattr(file)}
    return (
        facts.st_mode,
        facts.st_uid,
        facts.st_size,
        facts.st_nlink,
        facts.st_mtime_ns,
        facts.st_ctime_ns,
        names,
        flags,
    )
