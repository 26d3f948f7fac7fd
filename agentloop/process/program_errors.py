"""How a program ends: one paragraph for an error that its user can mend, and an exit status that is true."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from agentloop.errors import UserError


@contextmanager
def errors_end_the_program() -> Iterator[None]:
    """Exit with 2 after a `UserError`, printed as one paragraph on stderr, 130 after Ctrl-C and 143 after SIGTERM."""
    try:
        yield
    except UserError as error:
        from rich.console import Console

        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except asyncio.CancelledError:  # raised by `run_blocking` after SIGTERM
        sys.exit(128 + signal.SIGTERM)
