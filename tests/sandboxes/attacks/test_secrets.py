"""Code that looks for what is not its own: environment, files of the host, descriptors."""

import ast
import os
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

SECRET = "hunter2_in_the_environment"
"""conftest.py puts it into the environment of the sandbox's owner."""


async def test_environment_is_clean(box):
    code = """
import glob, os
print(dict(os.environ))
for path in glob.glob("/proc/*/environ"):
    try:
        print(open(path).read())
    except OSError:
        pass
"""
    for language, source in (("python", code), ("bash", "env; cat /proc/*/environ 2> /dev/null; true")):
        result = await box.run(source, language=language)
        assert result.return_code == 0
        assert SECRET not in result.stdout
        assert "SECRET" not in result.stdout


@pytest.mark.claim("only what it needs")
async def test_host_files_are_absent(box, tmp_path):
    (tmp_path / "secret").write_text("hunter2")
    code = f"""
import os
for path in ("/etc/shadow", "/home", "/root/.ssh", "/root/.bashrc", "/var", "/sys", "/run", "/boot",
             "/var/run/docker.sock", "/run/docker.sock", "/proc/kcore", "/proc/1/root/etc/shadow", "/proc/keys",
             "/dev/vda", "/dev/mem", "/dev/kvm", "/dev/tty", {str(tmp_path)!r}, {__file__!r}):
    try:
        found = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(10)
        if found:
            print(path, found)
    except OSError:
        pass
"""
    result = await box.run(code)
    # The interpreter may live below one of these: then that one has the way to it and nothing else.
    ways = set(sys.base_prefix.split("/"))
    for line in result.stdout.splitlines():
        assert set(ast.literal_eval(line.partition(" ")[2])) <= ways, line


@pytest.mark.claim("/proc")
async def test_no_file_descriptor_leaks_in(box):
    leak = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(leak, True)
    try:
        for language, code in (
            ("python", "import os; print(os.listdir('/proc/self/fd'))"),
            ("bash", "ls /proc/self/fd"),
        ):
            result = await box.run(code, language=language)
            assert [int(word.strip("[]',")) for word in result.stdout.split()] == [0, 1, 2, 3], result
    finally:
        os.close(leak)


async def test_own_file_descriptors_lead_nowhere(box):
    code = """
import os
for fd in (0, 1, 2):
    print(os.readlink(f"/proc/self/fd/{fd}").partition(":")[0])
"""
    result = await box.run(code)
    assert set(result.stdout.split()) <= {"pipe", "/dev/null", "/memfd"}


async def test_command_line_of_the_first_process_reveals_nothing(box):
    code = """
for name in ("cmdline", "environ", "comm"):
    for pid in (1, "self"):
        try:
            print(open(f"/proc/{pid}/{name}").read())
        except OSError:
            pass
"""
    shown = (await box.run(code)).stdout
    assert SECRET not in shown
    assert str(Path(__file__).parents[3] / "sandboxes") not in shown
