"""Servers of both generations of the official SDK."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SERVERS = str(Path(__file__).with_name("servers.py"))
_REQUIREMENTS = {"1.x": "mcp>=1.20,<2", "2.x": "mcp>=2,<3"}


@pytest.fixture(scope="session", params=list(_REQUIREMENTS))
def python(request: pytest.FixtureRequest, python_with) -> str:
    """The interpreter of an environment with one generation of the SDK."""
    return python_with(f"mcp-{request.param}", _REQUIREMENTS[request.param])


@pytest.fixture
def command(python: str) -> list[str]:
    return [python, SERVERS, "stdio"]


@pytest.fixture(params=["stdio", "http"])
def options(request: pytest.FixtureRequest, python: str, running_server) -> Iterator[dict[str, Any]]:
    """Return the arguments of `McpServer` for a server, for each transport."""
    if request.param == "stdio":
        yield {"command": [python, SERVERS, "stdio"]}
    else:
        with running_server([python, SERVERS, "http"]) as url:
            yield {"url": f"{url}/mcp"}
