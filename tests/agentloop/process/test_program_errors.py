import subprocess
import sys
from asyncio import CancelledError

import pytest

from agentloop.errors import UserError
from agentloop.process.program_errors import errors_end_the_program


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [(UserError("Name a [file]."), 2, "Name a [file].\n"), (KeyboardInterrupt(), 130, ""), (CancelledError(), 143, "")],
)
def test_status_and_message(error, status, printed, capsys):
    with pytest.raises(SystemExit) as ended, errors_end_the_program():
        raise error
    assert ended.value.code == status
    assert capsys.readouterr().err == printed


def test_other_errors_keep_their_traceback():
    with pytest.raises(ValueError, match="a bug"), errors_end_the_program():
        raise ValueError("a bug")


@pytest.mark.slow
@pytest.mark.parametrize("busy", [True, False])
def test_a_learner_that_still_computes_is_not_torn_down(busy):
    """As after a second Ctrl-C: Python would end its thread in the middle of C++, which aborts the process."""
    script = f"""
import atexit, time
from agentloop.process.program_errors import errors_end_the_program
from agentloop.process.threads import LEARNER
LEARNER.submit(time.sleep, 60 if {busy} else 0)
time.sleep(0.5)
atexit.register(print, "torn down")
with errors_end_the_program(owns_process=True):
    raise SystemExit(130)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, "torn down" in ended.stdout) == (130, not busy)


@pytest.mark.slow
def test_a_command_within_another_program_does_not_end_it_while_a_rank_computes():
    """As in a worker of pytest: gloo may hang for half an hour in a test before, and the next command ended it."""
    script = """
import threading, time
from agentloop.cli import main
threading.Thread(target=time.sleep, args=(60,), name="learner rank 0", daemon=True).start()
try:
    main(["--version"])
except SystemExit as ended:
    print("goes on", ended.code)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "goes on 0")
