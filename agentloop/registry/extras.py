"""Packages that come with an extra: an import without one ends in a sentence with the command that installs it."""

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
"""Modules that are not named like a package of their extra."""


def extra_with(module: str) -> str | None:
    """Return the extra that installs a module; None if no extra does."""
    top = module.partition(".")[0]
    found = map(_REQUIREMENT.match, requires("agentloop") or ())
    extras = {match["package"].replace("-", "_"): match["extra"] for match in found if match}
    return (_OTHER_MODULES | extras).get(top)


@contextmanager
def naming_extras() -> Iterator[None]:
    """Turn the failed import of a package of an extra into a `UserError` with the pip command."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = extra_with(error.name or "")
        if extra is None:
            raise
        raise UserError(
            f"This needs {error.name}, which is not installed. Run: pip install 'agentloop[{extra}]'"
        ) from error
