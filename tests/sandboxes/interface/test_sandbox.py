import errno
import os
import tempfile

import pytest

from agentloop import sandboxes
from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.interface.sandbox import MIN_MEMORY_MB, Execution
from agentloop.sandboxes.levels import rootfs
from agentloop.sandboxes.levels.bubblewrap import Bubblewrap


@pytest.mark.parametrize("name", ["../x", "/etc/cron.d/x", "a/../../x", "a\0b", ""])
def test_files_outside_the_working_directory_are_rejected(name):
    with pytest.raises(UserError, match=r"relative to the working directory|no NUL characters"):
        Execution(code="", files={name: b""})


@pytest.mark.parametrize(
    "bad",
    [
        {"memory_mb": 1},
        {"memory_mb": 15},
        {"files": {"\ud800": b""}},
        {"files": {"a/" * 3000 + "x": b""}},
        {"fetch_files": ["\ud800"]},
        {"fetch_files": ["a\0b"]},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
        {"memory_mb": -1},
        {"language": "fortran"},
    ],
)
def test_invalid_executions_raise(bad):
    with pytest.raises(UserError):
        Execution(code="", **bad)


def test_names_of_bytes_that_are_no_text_are_accepted():
    assert Execution(code="", files={"\udcff": b""}, fetch_files=["\udcff"]).files


def test_missing_package_is_named():
    with pytest.raises(UserError, match=r"'nunpy'.*Did you mean 'numpy'"):
        Bubblewrap(packages=["nunpy"])


def test_sandbox_is_created_by_level():
    assert sandboxes.create("bubblewrap", slots=1).level == "bubblewrap"
    with pytest.raises(UserError, match=r"'bubblewarp'.*Did you mean 'bubblewrap'"):
        sandboxes.create("bubblewarp")
    with pytest.raises(UserError, match="slotts"):
        sandboxes.create("bubblewrap", slotts=1)


def test_package_requirements_are_included():
    names = {path.name for path in rootfs.package_paths(["pydantic"])}
    assert {"pydantic", "pydantic_core", "typing_extensions.py", "annotated_types"} <= names
    assert "numpy" not in names


def test_paths_to_show_must_exist(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        Bubblewrap(binds=[str(tmp_path / "missing")])


@pytest.mark.slow
@pytest.mark.parametrize("level", ["slots", "bubblewrap", pytest.param("docker", marks=pytest.mark.docker), "none"])
async def test_least_memory_runs_a_program(level):
    sandbox = sandboxes.create(level, slots=1)
    result = await sandbox.run(Execution(code="print(6 * 7)", memory_mb=MIN_MEMORY_MB))
    await sandbox.close()
    assert (result.stdout, result.return_code) == ("42\n", 0)


@pytest.mark.slow
async def test_files_that_exceed_the_memory_are_the_callers_mistake():
    sandbox = sandboxes.create("slots", slots=1)
    with pytest.raises(UserError, match="raise it"):
        await sandbox.run(Execution(code="print(1)", files={"big": bytes(100 << 20)}, memory_mb=32))
    assert (await sandbox.run(Execution(code="print(1)"))).stdout == "1\n"
    await sandbox.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
async def test_full_temporary_folder_is_a_failure_of_the_sandbox(number, monkeypatch):
    def full(*_, **__):
        raise OSError(number, os.strerror(number))

    sandbox = sandboxes.create("none", slots=1)
    await sandbox.start()
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(SandboxError, match=os.strerror(number)):
        await sandbox.run(Execution(code="print(1)"))
    monkeypatch.undo()
    assert (await sandbox.run(Execution(code="print(1)"))).stdout == "1\n"
    await sandbox.close()
    assert len(os.listdir("/proc/self/fd")) <= before
