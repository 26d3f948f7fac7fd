"""Convert the text of an XML-like parameter to the type in the tool's JSON Schema.

Text that does not match the type stays text, so that validation explains the error to the model: 3.5 is not an integer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentloop.rendering.formats.base import ToolSchemas
from agentloop.rendering.formats.strict_json import Malformed, json_of

_MISSING = object()
_NARROWER = frozenset({"$ref", "enum", "const", "anyOf", "oneOf", "allOf"})
"""Keywords that `typed_value` reads before the type."""


def typed_value(text: str, function: str, parameter: str, tools: ToolSchemas) -> Any:
    """Return the value of `text` for a parameter of a tool; `text` itself if the tool or the parameter is unknown."""
    parameters = _parameters(function, tools)
    schema = parameter_schema(function, parameter, tools)
    if schema is None:
        return text
    value = _convert(text, schema, parameters, depth=0)
    return text if value is _MISSING else value


def parameter_schema(function: str, parameter: str, tools: ToolSchemas) -> Any:
    """Return the schema of a parameter; None if the tool or the parameter is unknown."""
    return _parameters(function, tools).get("properties", {}).get(parameter)


def is_text(function: str, parameter: str, tools: ToolSchemas) -> bool:
    """Return whether any value of a parameter is a text, as it is if the parameter is unknown."""
    schema = parameter_schema(function, parameter, tools)
    if not isinstance(schema, Mapping):
        return True
    return schema.get("type") == "string" and not _NARROWER.intersection(schema)


def parameter_names(function: str, tools: ToolSchemas) -> list[str]:
    """Return the names of a tool's parameters; an empty list if the tool is unknown."""
    return list(_parameters(function, tools).get("properties", {}))


def _parameters(function: str, tools: ToolSchemas) -> Mapping[str, Any]:
    return next((tool["function"].get("parameters", {}) for tool in tools if tool["function"]["name"] == function), {})


def _convert(text: str, schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    """Return the value, or _MISSING if the text does not match the schema."""
    if not isinstance(schema, Mapping) or depth > 8:
        return _MISSING
    if reference := schema.get("$ref"):
        return _convert(text, _resolve(reference, root), root, depth + 1)
    for choice in ("enum", "const"):
        if choice in schema:
            values = schema[choice] if choice == "enum" else [schema[choice]]
            if text in values:
                return text
            stripped = text.strip()
            return next((value for value in values if stripped in (value, json.dumps(value))), _MISSING)
    alternatives = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if alternatives is None:
        types = schema.get("type", ["object", "array", "number", "boolean", "null", "string"])
        alternatives = [{"type": kind} for kind in ([types] if isinstance(types, str) else types)]
        if len(alternatives) == 1:
            return _of_type(text, alternatives[0]["type"])
    # A string accepts any text, so try it last.
    for option in sorted(
        alternatives, key=lambda option: isinstance(option, Mapping) and option.get("type") == "string"
    ):
        if (value := _convert(text, option, root, depth + 1)) is not _MISSING:
            return value
    return _MISSING


def _of_type(text: str, kind: str) -> Any:
    if kind == "string":
        return text
    if kind == "boolean" and text.strip().lower() in ("true", "false"):  # the template itself writes True
        return text.strip().lower() == "true"
    if kind == "null" and text.strip() == "None":
        return None
    try:
        value = json_of(text)
    except Malformed:
        return _MISSING
    return value if _is_of_type(value, kind) else _MISSING


def _is_of_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    kinds: dict[str, tuple[type, ...]] = {
        "integer": (int,),
        "number": (int, float),
        "object": (dict,),
        "array": (list,),
    }
    return isinstance(value, kinds.get(kind, ()))


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """Resolve a local reference, `#/$defs/Name`."""
    node: Any = root
    for key in reference.removeprefix("#/").split("/"):
        if not isinstance(node, Mapping):
            return None
        node = node.get(key)
    return node
