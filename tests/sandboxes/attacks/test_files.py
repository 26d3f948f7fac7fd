"""Files in and out: paths that lead elsewhere, too much, and things that are no files."""

import io
import os
import zipfile

import pytest

from agentloop.errors import UserError
from agentloop.sandboxes.interface.sandbox import MAX_FILES, Execution

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest.mark.parametrize(
    "path",
    ["../x", "../../tmp/x", "a/../../x", "/etc/cron.d/x", "/x", "/tmp/../etc/x", "a\0b", "", ".", "/tmp", "/proc/1"],
)
async def test_files_cannot_be_written_outside_the_working_directory(path):
    with pytest.raises(UserError, match="files contains the path"):
        Execution(code="", files={path: b""})


def exist_on_the_host(*paths: str) -> bool:
    return any(map(os.path.exists, paths))


@pytest.mark.claim("own /tmp, /mnt and /dev/shm")
async def test_files_may_be_placed_below_writable_paths(box):
    marker = f"from_the_host_{os.getpid()}"
    names = ("a/b/c", "./d", f"/tmp/{marker}", f"/mnt/data/{marker}")
    code = f"for name in {names!r}: print(open(name).read())"
    result = await box.run(code, files={name: name.encode() for name in names})
    assert result.stdout.split() == list(names)
    assert not exist_on_the_host(f"/tmp/{marker}", f"/mnt/data/{marker}")


async def test_maximum_number_of_files_is_accepted(box):
    files = {f"d{index % 7}/f{index}": str(index).encode() for index in range(MAX_FILES)}
    code = "import os; print(sum(len(names) for _, _, names in os.walk('.')))"
    assert (await box.run(code, files=files, timeout=60.0)).stdout == f"{MAX_FILES + 1}\n"


async def test_conflicting_files_do_not_fail_the_sandbox(box):
    with pytest.raises(UserError, match="files cannot be written"):
        await box.run("print(1)", files={"a": b"file", "a/b": b"below a file"})
    assert (await box.run("print(1)")).stdout == "1\n"


async def test_oversized_files_do_not_fail_the_sandbox(box):
    with pytest.raises(UserError, match="files cannot be written"):
        await box.run("print(1)", files={"big": bytes(100 << 20)}, memory_mb=1024)
    assert (await box.run("print(1)")).stdout == "1\n"


@pytest.mark.claim("own /tmp, /mnt and /dev/shm")
async def test_own_file_is_fetched_by_the_requested_path(box):
    code = "open('/mnt/b', 'wb').write(b'\\x00b'); open('a', 'w').write('a'); open('/tmp/c', 'w').write('c')"
    paths = ["/mnt/b", "a", "./a", "/tmp/work/a", "../c", "missing", "/mnt"]
    result = await box.run(code, fetch_files=paths)
    assert result.files == {"/mnt/b": b"\0b", "a": b"a", "./a": b"a", "/tmp/work/a": b"a", "../c": b"c"}
    assert not result.files_truncated


async def test_fetch_cannot_reach_the_host_and_never_hangs(box):
    code = """
import os, socket
os.symlink("/etc/shadow", "shadow")
os.symlink("/proc/self/environ", "environ")
os.symlink("/", "root")
os.symlink("/dev/zero", "zero")
os.symlink("loop", "loop")
os.mkfifo("fifo")
try:
    socket.socket(socket.AF_UNIX).bind("socket")
except PermissionError:
    pass
os.close(os.open("secret", os.O_CREAT, 0))
"""
    names = ["shadow", "environ", "root", "root/etc/shadow", "zero", "loop", "fifo", "socket"]
    paths = [
        *names,
        "/etc/shadow",
        "../../etc/shadow",
        "/dev/zero",
        "/dev/stdin",
        "/proc/self/mem",
        "/proc/1/environ",
    ]
    result = await box.run(code, fetch_files=[*paths, f"/proc/{os.getpid()}/environ", __file__, "."])
    assert result.stderr == ""
    assert result.files == {}
    shown = await box.run("pass", fetch_files=["/etc/passwd"])
    # A container has that of its image.
    assert b"root:" not in shown.files.get("/etc/passwd", b"") or box.sandbox.level == "docker"


async def test_fetched_files_are_truncated_and_flagged(box):
    code = "open('big', 'wb').write(bytes(3 << 20)); open('small', 'w').write('s'); os_error = open('sparse', 'wb')"
    code += "\nos_error.truncate(60 << 20)"
    result = await box.run(code, fetch_files=["big", "small", "sparse"], fetch_bytes=1 << 20)
    assert result.files == {"small": b"s"}
    assert result.files_truncated


async def test_zip_bomb_fills_only_its_own_disk(box):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("x", "w") as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
    code = "import zipfile; zipfile.ZipFile('bomb.zip').extractall()"
    result = await box.run(code, files={"bomb.zip": buffer.getvalue()}, timeout=60.0)
    assert result.return_code == 1
    assert "No space left on device" in result.stderr or "File too large" in result.stderr


async def test_other_paths_are_not_writable(box):
    code = """
import os
for directory, below, names in os.walk("/"):
    if directory in ("/proc", "/sys", "/tmp", "/mnt", "/dev/shm", "/dev/mqueue") or directory.count("/") > 3:
        below.clear()
        continue
    for path in [directory, *(os.path.join(directory, name) for name in names)]:
        if not path.startswith("/dev/") and os.access(path, os.W_OK) and not os.path.islink(path):
            print(path)
"""
    result = await box.run(code)
    assert (result.stdout, result.stderr) == ("", "")
