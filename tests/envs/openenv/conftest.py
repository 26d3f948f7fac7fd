"""A server of the openenv package."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def url(python_with, running_server) -> Iterator[str]:
    python = python_with("openenv-0.10", "openenv>=0.10,<0.11")
    with running_server([python, str(Path(__file__).with_name("server.py"))]) as url:
        yield url
