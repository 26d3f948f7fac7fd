"""How a program ends: one paragraph for an error that its user can mend, and an exit status that is true."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from agentloop.errors import UserError


@contextmanager
def errors_end_the_program() -> Iterator[None]:
    """Exit with 2 after a `UserError`, printed as one paragraph on stderr, and with 130 after Ctrl-C."""
    try:
        yield
    except UserError as error:
        from rich.console import Console

        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
