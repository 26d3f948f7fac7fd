"""`--no-skips`, which `make test` passes: what was not run was not tested. And servers of other people's packages, each
in a virtual environment of its own."""

import socket
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.sums.fixtures import sums, sums_model  # noqa: F401

_BUILD = Path(__file__).parents[1] / "build"


@pytest.fixture(scope="session")
def python_with() -> Callable[..., str]:
    """Call as python_with(folder, *requirements): the Python of a virtual environment below build/ that has them."""

    def made(folder: str, *requirements: str) -> str:
        python = _BUILD / folder / "bin" / "python"
        done = _BUILD / folder / "installed"
        with _one_at_a_time(folder):
            if not done.exists() or done.read_text() != "\n".join(requirements):
                venv.create(_BUILD / folder, with_pip=True, clear=True)
                subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True, timeout=600)
                done.write_text("\n".join(requirements))
        return str(python)

    return made


@pytest.fixture(scope="session")
def verl_package() -> Path:
    """A folder from which verl itself can be imported: with what that needs beside our own packages, and no more, since
    the rest of its requirements does not agree with them."""
    folder, packages = _BUILD / "verl-0.9.1", ("verl==0.9.1", "tensordict==0.15.3", "pyvers==0.2.3")
    done = folder / "installed"
    with _one_at_a_time(folder.name):
        if not done.exists():
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"]
            subprocess.run([*install, str(folder), *packages], check=True, timeout=600)
            done.touch()
    return folder


def _one_at_a_time(folder: str) -> FileLock:
    """What one process of pytest makes below build/, another one waits for."""
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips", action="store_true", help="fail when a test was skipped or no test of the vLLM engine ran"
    )


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not session.config.getoption("--no-skips") or exitstatus != pytest.ExitCode.OK or reporter is None:
        return  # a worker of xdist has no reporter: the process that started it hears of all tests
    skipped = reporter.stats.get("skipped", [])
    ran = [report for report in reporter.stats.get("passed", []) if "vllm" in report.keywords]
    if skipped or not ran:
        reporter.write_line(f"\n--no-skips: {len(skipped)} skipped; tests of the vLLM engine that ran: {len(ran)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
