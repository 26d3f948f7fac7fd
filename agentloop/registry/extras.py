"""Report a missing optional package with the pip command that installs it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires

from agentloop.errors import UserError

_REQUIREMENT = re.compile(r"""(?P<package>[\w-]+).*extra == ['"](?P<extra>(?!all|dev)\w+)['"]""")
_OTHER_MODULES = {
    "huggingface_hub": "train",  # comes with transformers
    "megatron": "megatron",
    "mlflow": "mlflow",
    "starlette": "serve",  # comes with fastapi
    "tokenizers": "train",
}
"""Modules whose name differs from the package in their extra."""


def extra_with(module: str) -> str | None:
    """Return the name of the extra that installs a module; None if no extra does."""
    top = module.partition(".")[0]
    found = map(_REQUIREMENT.match, requires("agentloop") or ())
    extras = {match["package"].replace("-", "_"): match["extra"] for match in found if match}
    return (_OTHER_MODULES | extras).get(top)


@contextmanager
def naming_extras() -> Iterator[None]:
    """Convert a failed import of an optional package to a `UserError` with the pip command."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = extra_with(error.name or "")
        if extra is None:
            raise
        raise UserError(
            f"This needs {error.name}, which is not installed. Run: pip install 'agentloop[{extra}]'"
        ) from error
