"""How a program ends: one paragraph for an error that its user can mend, and an exit status that is true."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from agentloop.errors import UserError
from agentloop.process.threads import LEARNER

_COMPUTING = ("agentloop-hf", "learner rank 0")
"""Names of threads that end when the engine or the learner is closed."""


@contextmanager
def errors_end_the_program(*, owns_process: bool = False) -> Iterator[None]:
    """Exit with 2 after a `UserError`, printed as one paragraph on stderr, 130 after Ctrl-C and 143 after SIGTERM.

    `owns_process` says that the process has no other purpose, so that it may end although threads still compute.
    Otherwise only `SystemExit` is raised, as the caller may go on.
    """
    try:
        yield
    except UserError as error:
        from rich.console import Console

        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        _exit(2, owns_process)
    except KeyboardInterrupt:
        _exit(128 + signal.SIGINT, owns_process)
    except asyncio.CancelledError:  # raised by `run_blocking` after SIGTERM
        _exit(128 + signal.SIGTERM, owns_process)
    except SystemExit as error:  # of typer, also after Ctrl-C
        if isinstance(error.code, int):
            _exit(error.code, owns_process)
        raise


def _exit(status: int, owns_process: bool) -> None:
    """Exit, at once if a second signal has left a learner or an engine computing: Python would abort in their C++."""
    if not owns_process:
        sys.exit(status)
    if LEARNER.is_busy or any(thread.name in _COMPUTING for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
