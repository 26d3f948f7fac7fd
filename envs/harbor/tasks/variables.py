"""Variables of task.toml that refer to those of this machine: "${NAME}" and "${NAME:-default}"."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from agentloop.errors import UserError

_REFERENCE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)


def resolved(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with their values. Raises `UserError` if one without a default is not set."""
    return {name: _value(name, text) for name, text in variables.items()}


def _value(name: str, text: str) -> str:
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return text
    value = os.environ.get(match[1], match[2])
    if value is None:
        raise UserError(f"The task needs the variable {match[1]} for {name} = {text!r}: set it, and start again.")
    return value
