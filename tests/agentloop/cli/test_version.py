import subprocess
import sys
from importlib.metadata import version

import pytest

from agentloop.cli import main

pytestmark = pytest.mark.slow


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"agentloop {version('agentloop')}\n"


def test_an_interpreter_runs_the_command_line_as_a_module():
    command = [sys.executable, "-m", "agentloop", "--version"]
    assert subprocess.check_output(command, text=True) == f"agentloop {version('agentloop')}\n"
