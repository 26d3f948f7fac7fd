"""Arguments described by a JSON Schema that somebody else wrote, in place of a signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.errors import UserError
from agentloop.tools.schema import ArgumentError

_MAX_PROBLEMS = 5
_MAX_SHOWN = 200


class SchemaArguments:
    """What a tool takes, by JSON Schema (2020-12 unless it says another): the counterpart of `schema.Arguments`.

    Raises `UserError` where the schema itself is none.
    """

    def __init__(self, schema: Mapping[str, Any], *, what: str) -> None:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for

        self.schema: dict[str, Any] = {"type": "object", "properties": {}, **schema}
        kind = validator_for(self.schema, default=Draft202012Validator)
        try:
            kind.check_schema(self.schema)
        except SchemaError as error:
            raise UserError(f"The input schema of {what} is no JSON Schema: {error.message}.") from error
        self._validator = kind(self.schema)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they are. Raises `ArgumentError`, a line a problem."""
        problems = sorted(
            self._validator.iter_errors(dict(arguments)), key=lambda problem: list(map(str, problem.path))
        )
        if problems:
            lines = [f"{'.'.join(map(str, p.path)) or 'arguments'}: {p.message[:_MAX_SHOWN]}" for p in problems]
            raise ArgumentError("\n".join(lines[:_MAX_PROBLEMS]))
        return dict(arguments)
