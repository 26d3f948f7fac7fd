"""Servers of both generations of the official SDK, each in a virtual environment of its own below build/."""

import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SERVERS = Path(__file__).with_name("servers.py")
_BUILD = Path(__file__).parents[3] / "build"
_REQUIREMENTS = {"1.x": "mcp>=1.20,<2", "2.x": "mcp>=2,<3"}


@pytest.fixture(scope="session", params=list(_REQUIREMENTS))
def python(request: pytest.FixtureRequest) -> str:
    """The interpreter of an environment with one generation of the SDK."""
    folder = _BUILD / f"mcp-{request.param}"
    done = folder / "installed"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", _REQUIREMENTS[request.param]]
        subprocess.run(pip, check=True, timeout=600)
        done.touch()
    return str(folder / "bin" / "python")


@pytest.fixture
def command(python: str) -> list[str]:
    return [python, str(SERVERS), "stdio"]


@pytest.fixture(params=["stdio", "http"])
def options(request: pytest.FixtureRequest, python: str) -> Iterator[dict[str, Any]]:
    """What `McpServer` takes for a server, over one transport and the other."""
    if request.param == "stdio":
        yield {"command": [python, str(SERVERS), "stdio"]}
    else:
        with _serving(python) as url:
            yield {"url": url}


@contextmanager
def _serving(python: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([python, str(SERVERS), "http", str(port)], stdout=sys.stderr, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                assert server.poll() is None
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.kill()
        server.wait()
