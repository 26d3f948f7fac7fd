import sys
import venv

import pytest

from agentloop.envs.workers.interpreters import install, installed, interpreter_of, suitable_python
from agentloop.envs.workers.packages import PACKAGES, Package, package_named
from agentloop.errors import UserError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTLOOP_ENVS", str(tmp_path / "envs"))
    interpreter_of.cache_clear()
    yield tmp_path / "envs"
    interpreter_of.cache_clear()


@pytest.mark.slow
def test_an_installed_environment_is_found_by_default(folder, monkeypatch, tmp_path):
    package = tmp_path / "source"
    package.mkdir()
    (package / "little_game.py").write_text("print('a game')")
    (package / "pyproject.toml").write_text(
        "[project]\nname = 'little-game'\nversion = '1'\n[build-system]\nrequires = []\n"
        "build-backend = 'backend'\nbackend-path = ['.']\n"
    )
    (package / "backend.py").write_text(
        "import zipfile\n"
        "def build_wheel(folder, *_):\n"
        "    name = 'little_game-1-py3-none-any.whl'\n"
        "    with zipfile.ZipFile(folder + '/' + name, 'w') as wheel:\n"
        "        wheel.write('little_game.py')\n"
        "        meta = 'little_game-1.dist-info/'\n"
        "        wheel.writestr(meta + 'METADATA', 'Metadata-Version: 2.1\\nName: little-game\\nVersion: 1\\n')\n"
        "        wheel.writestr(meta + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "        wheel.writestr(meta + 'RECORD', '')\n"
        "    return name\n"
    )
    monkeypatch.setitem(PACKAGES, "little", Package((str(package),), "little_game", (3, 11)))
    with pytest.raises(UserError, match="Run: agentloop envs install little"):
        interpreter_of("little")
    made = install("little", PACKAGES["little"])
    assert made == folder / "little" / "bin" / "python"
    assert interpreter_of("little") == str(installed("little")) == str(made)
    monkeypatch.setitem(PACKAGES, "little", Package((str(package), "other"), "little_game", (3, 11)))
    assert installed("little") is None  # tested with other versions since


@pytest.mark.slow
def test_a_package_that_cannot_be_installed_or_imported_is_named(tmp_path):
    nowhere = Package((str(tmp_path / "nowhere"),), "nowhere", (3, 11))
    with pytest.raises(UserError, match=r"(?s)pip cannot install nowhere. Its last lines:.*nowhere"):
        install("nowhere", nowhere)
    assert "nowhere" not in PACKAGES
    with pytest.raises(UserError, match="cannot create a virtual environment"):
        install("nowhere", nowhere, python="/nowhere/python")


@pytest.fixture
def without_space(tmp_path):
    """A python that begins a virtual environment and fails."""
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n[ $1 = -c ] && echo 3 12 && exit\n"
        'for folder; do :; done\nmkdir -p "$folder/half"\necho out of space >&2\nexit 1\n'
    )
    python.chmod(0o755)
    return str(python)


@pytest.mark.slow
def test_a_failed_installation_keeps_the_earlier_one(folder, without_space):
    (folder / "little" / "bin").mkdir(parents=True)
    (folder / "little" / "agentloop-installed.txt").write_text("little==1\n")
    for given, says in (("/nowhere/python", "cannot create"), (without_space, "out of space")):
        with pytest.raises(UserError, match=says):
            install("little", Package(("little==2",), "little", (3, 11)), python=given)
        assert sorted(path.name for path in folder.rglob("*")) == ["agentloop-installed.txt", "bin", "little"]


@pytest.mark.slow
def test_what_a_killed_installation_moved_away_comes_back(folder, without_space):
    (folder / "little" / "half").mkdir(parents=True)
    (folder / ".old-little").mkdir()
    (folder / ".old-little" / "agentloop-installed.txt").write_text("little==1\n")
    with pytest.raises(UserError, match="out of space"):
        install("little", Package((), "little", (3, 11)), python=without_space)
    assert sorted(path.name for path in folder.rglob("*")) == ["agentloop-installed.txt", "little"]


@pytest.mark.slow
def test_an_interpreter_that_is_too_old_is_refused():
    with pytest.raises(UserError, match=r"needs Python 3\.98 or 3\.99, but .* is Python 3\.1\d: give --python another"):
        install("little", Package((), "little", (3, 98), (3, 99)), python=sys.executable)


@pytest.mark.slow
def test_an_interpreter_of_an_own_virtual_environment_stays_in_it(tmp_path):
    venv.create(tmp_path / "own", with_pip=False)
    python = tmp_path / "own" / "bin" / "python"
    with pytest.raises(UserError, match=r"does not find the package textarena\. Install it there"):
        interpreter_of("textarena", str(python))
    (next(python.parents[1].glob("lib/*/site-packages")) / "textarena.py").touch()
    assert interpreter_of("textarena", str(python)) == str(python)  # not what the link points to


def test_an_interpreter_that_does_not_exist_is_an_error():
    with pytest.raises(UserError, match=r"'\./nowhere/python', which is not a program"):
        interpreter_of("textarena", "./nowhere/python")


def test_our_own_interpreter_is_used_where_it_has_the_package(monkeypatch):
    monkeypatch.setitem(PACKAGES, "little", Package(("pytest",), "pytest", (3, 11)))
    assert interpreter_of("little") == sys.executable


@pytest.mark.slow
def test_a_suitable_python_is_found_or_named(monkeypatch, tmp_path):
    assert suitable_python("little", Package((), "little", (3, 11))) == sys.executable
    wanted = Package((), "little", (3, 98), (3, 99))
    shim, real = tmp_path / "bin" / "python3.99", tmp_path / "pyenv" / "versions" / "3.99.1" / "bin" / "python3.99"
    for program, body in ((shim, "exit 127"), (real, "exit 0")):
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent), prepend=":")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert suitable_python("little", wanted) == str(real)  # a shim of a version that is not chosen does not run
    real.unlink()
    with pytest.raises(UserError, match=r"little needs Python 3\.98 or 3\.99, but this machine has none"):
        suitable_python("little", wanted)


def test_names_may_have_hyphens():
    assert package_named("Reasoning-Gym") == ("reasoning_gym", PACKAGES["reasoning_gym"])
    with pytest.raises(UserError, match=r"There is no package 'textarina' to install\. Did you mean 'textarena'"):
        package_named("textarina")
