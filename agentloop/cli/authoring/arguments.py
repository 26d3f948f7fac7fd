"""Parse values on the command line: KEY=VALUE pairs and JSON objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from agentloop.errors import UserError


def read_json(text: str | None, option: str) -> dict[str, Any]:
    """Parse the JSON object of an option; None gives {}. Raises `UserError`."""
    try:
        given = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise UserError(
            f"{option} {text!r} is not valid JSON: {error}. Pass an object: '{{\"key\": value}}'."
        ) from error
    if not isinstance(given, dict):
        raise UserError(f"{option} {text!r} is not a JSON object. Pass an object: '{{\"key\": value}}'.")
    return given


def read_pairs(pairs: list[str], properties: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Parse KEY=VALUE pairs. A value is parsed as JSON if it is valid JSON and the parameter is not a string.

    `properties` come from the JSON Schema of the parameters. Raises `UserError`, also for a key that is given twice.
    """
    given: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UserError(f"Invalid argument {pair!r}: expected KEY=VALUE.")
        if key in given:
            raise given_twice(key)
        given[key] = value if _is_text(properties.get(key)) else _json_or_text(value)
    return given


def _is_text(schema: Any) -> bool:
    """Return whether the schema of a parameter is that of a string. A schema may also be true or false."""
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def given_twice(key: str) -> UserError:
    """Return the error for a key with two values, one of which would be lost."""
    return UserError(f"{key!r} is given twice: give it once, with one value.")


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
