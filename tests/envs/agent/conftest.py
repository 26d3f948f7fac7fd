"""Programs of harnesses, installed for the tests."""

from pathlib import Path

import pytest


@pytest.fixture
def program_of(program_from_npm, python_with):
    """Install the newest version of a harness that was tried, and return its program."""

    def made(harness):
        if harness.install.startswith("pip install "):
            python = python_with(harness.name, *harness.install.removeprefix("pip install ").split())
            return str(Path(python).with_name(harness.program))
        return program_from_npm(harness.install.removeprefix("npm install -g "), harness.program)

    return made
