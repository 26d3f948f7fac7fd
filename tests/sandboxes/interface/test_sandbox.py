import pytest

from agentloop import sandboxes
from agentloop.errors import UserError
from agentloop.sandboxes.interface.sandbox import Execution
from agentloop.sandboxes.levels import rootfs
from agentloop.sandboxes.levels.bubblewrap import Bubblewrap
from agentloop.sandboxes.levels.seccomp import build_filter


@pytest.mark.parametrize("name", ["../x", "/etc/cron.d/x", "a/../../x", "a\0b", ""])
def test_files_outside_the_working_directory_are_rejected(name):
    with pytest.raises(UserError, match="relative to the working directory"):
        Execution(code="", files={name: b""})


@pytest.mark.parametrize(
    "bad",
    [{"timeout": 0}, {"timeout": float("nan")}, {"timeout": float("inf")}, {"memory_mb": -1}, {"language": "fortran"}],
)
def test_invalid_executions_raise(bad):
    with pytest.raises(UserError):
        Execution(code="", **bad)


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


def test_seccomp_filters_of_both_architectures():
    for machine in ("x86_64", "aarch64"):
        program = build_filter(machine)
        assert len(program) % 8 == 0
        assert program.endswith(b"\x06\x00\x00\x00\x00\x00\xff\x7f")  # what is not refused is allowed
    with pytest.raises(UserError, match="riscv64"):
        build_filter("riscv64")
