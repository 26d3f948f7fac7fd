"""A server of the openenv package, in a virtual environment of its own below build/."""

import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[3] / "build" / "openenv-0.10"
_REQUIREMENT = "openenv>=0.10,<0.11"


@pytest.fixture(scope="session")
def python() -> str:
    done = _FOLDER / "installed"
    if not done.exists():
        venv.create(_FOLDER, with_pip=True, clear=True)
        pip = [str(_FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet", _REQUIREMENT]
        subprocess.run(pip, check=True, timeout=600)
        done.touch()
    return str(_FOLDER / "bin" / "python")


@pytest.fixture(scope="session")
def url(python: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, str(Path(__file__).with_name("server.py")), str(port)]
    server = subprocess.Popen(command, stdout=sys.stderr, stderr=subprocess.DEVNULL)
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
