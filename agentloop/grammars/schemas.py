"""Refuse JSON Schemas with keywords that xgrammar ignores: their answers could break the schema in silence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentloop.errors import UserError

_IGNORED = (
    *("not", "if", "contains", "uniqueItems", "dependentRequired", "dependentSchemas", "dependencies"),
    *("$dynamicRef", "$recursiveRef"),
)
_DECIDING = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""xgrammar reads the first of these that a schema has, and ignores all that stands next to it."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LENGTHS = ("minLength", "maxLength")
_SHOWING_OBJECT = ("properties", "additionalProperties", "unevaluatedProperties")
_SHOWING_ARRAY = ("items", "prefixItems", "unevaluatedItems")
"""xgrammar takes a schema without `type` for one of objects or arrays by these keywords."""
_TYPED = (
    *(*_BOUNDS, *_LENGTHS, "multipleOf", "pattern", "minItems", "maxItems", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties", "required"),
)
_RESTRICTING = (*_DECIDING, *_SHOWING_OBJECT, *_SHOWING_ARRAY, *_TYPED)
_FORMATS = (
    *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
    *("uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
)
"""Formats that xgrammar enforces, without the lengths next to them."""
_LOOKAHEAD = re.compile(r"(?<!\\)(?:\\\\)*\(\?[=!]")


def check_schemas(grammar: str) -> None:
    """Check the schemas in a structural tag. Raises `UserError` if the grammar would allow what one of them forbids."""
    for schema in _schemas_in(json.loads(grammar)):
        _check(schema, "#")


def _schemas_in(tag: Any) -> Iterator[Any]:
    if isinstance(tag, Mapping) and tag.get("type") == "json_schema":
        yield tag.get("json_schema")
    elif isinstance(tag, Mapping | list):
        for inner in tag.values() if isinstance(tag, Mapping) else tag:
            yield from _schemas_in(inner)


def _check(schema: Any, where: str, *, is_name: bool = False) -> None:
    if not isinstance(schema, Mapping):
        return
    for keyword, problem in _problems(schema, is_name=is_name):
        raise UserError(
            f"The JSON Schema has `{keyword}` in {where}, {problem}. Write the schema without it, and check the "
            "answers yourself."
        )
    _check(schema.get("propertyNames"), f"{where}/propertyNames", is_name=True)
    for keyword in ("additionalProperties", "unevaluatedProperties", "items", "unevaluatedItems"):
        _check(schema.get(keyword), f"{where}/{keyword}")
    for keyword in ("properties", "patternProperties", "$defs", "definitions"):
        inner = schema.get(keyword)
        for name, value in inner.items() if isinstance(inner, Mapping) else ():
            _check(value, f"{where}/{keyword}/{name}")
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        members = schema.get(keyword)
        for index, value in enumerate(members if isinstance(members, list) else ()):
            _check(value, f"{where}/{keyword}/{index}")


def _problems(schema: Mapping[str, Any], *, is_name: bool) -> Iterator[tuple[str, str]]:
    """Yield keywords that the grammar would not obey, each with the reason."""
    for keyword in _IGNORED:
        if schema.get(keyword, False) is not False:
            yield keyword, "which is not enforced"
    if schema.get("$ref", "#") != "#" and not str(schema["$ref"]).startswith("#/"):
        yield "$ref", "which is only read if it begins with #/"
    if "allOf" in schema and (not isinstance(schema["allOf"], list) or len(schema["allOf"]) != 1):
        yield "allOf", "which is only enforced with one member"
    if deciding := next((keyword for keyword in _DECIDING if keyword in schema), None):
        for keyword in _RESTRICTING:
            says_nothing = schema.get(keyword, {}) in ({}, []) or _agree(schema, deciding, keyword)
            if keyword != deciding and not says_nothing:
                yield keyword, f"which is not enforced next to `{deciding}`"
        return
    types = ["string"] if is_name else _types_of(schema)
    if not types:
        for keyword in filter(schema.__contains__, _TYPED):
            yield keyword, "which is not enforced without a `type` next to it"
    if "string" in types:
        yield from _problems_of_text(schema)
    if "integer" in types or "number" in types:
        yield from _problems_of_number(schema, is_whole="number" not in types)
    if "object" in types:
        yield from _problems_of_object(schema)


def _types_of(schema: Mapping[str, Any]) -> list[Any]:
    """Return the types that xgrammar sees; none if it allows all."""
    if (types := schema.get("type")) is not None:
        return types if isinstance(types, list) else [types]
    if any(keyword in schema for keyword in _SHOWING_OBJECT):
        return ["object"]
    return ["array"] if any(keyword in schema for keyword in _SHOWING_ARRAY) else []


def _agree(schema: Mapping[str, Any], deciding: str, other: str) -> bool:
    """Whether a keyword forbids nothing more than the deciding one: some clients send `enum` with `const`."""
    values = schema.get("enum")
    return deciding == "const" and other == "enum" and isinstance(values, list) and schema["const"] in values


def _problems_of_text(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if schema.get("format") in _FORMATS:
        # Clients write the pattern of a format next to it, and that no address is empty.
        for keyword in _LENGTHS:
            if keyword in schema and (keyword, schema[keyword]) not in (("minLength", 0), ("minLength", 1)):
                yield keyword, "which is not enforced next to this `format`"
    elif "pattern" in schema:
        for keyword in _LENGTHS:
            if schema.get(keyword):
                yield keyword, "which is not enforced next to `pattern`"
        if _LOOKAHEAD.search(str(schema["pattern"])):
            yield "pattern", "whose lookahead is not enforced"


def _problems_of_number(schema: Mapping[str, Any], *, is_whole: bool) -> Iterator[tuple[str, str]]:
    if "multipleOf" not in schema:
        return
    if not is_whole or schema["multipleOf"] % 1:
        yield "multipleOf", "which is only enforced with a whole number and the type integer"
    elif any(keyword in schema for keyword in _BOUNDS):
        yield "multipleOf", "which is not enforced next to bounds"


def _problems_of_object(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    names = list(schema.get("properties", ()))
    if not all(name in names for name in schema.get("required", ())):
        yield "required", "which is only enforced for names in `properties`"
    if "propertyNames" in schema and any(schema.get(keyword) is False for keyword in _SHOWING_OBJECT[1:]):
        yield "propertyNames", "next to which `additionalProperties: false` is not enforced"
    patterns = list(schema.get("patternProperties", ()))
    if not patterns:
        return
    allows_others = any(schema.get(keyword, False) is not False for keyword in _SHOWING_OBJECT[1:])
    if len(patterns) > 1 or names or allows_others or "propertyNames" in schema:
        yield "patternProperties", "which is only enforced with one pattern and without other names"
    if any(map(_LOOKAHEAD.search, patterns)):
        yield "patternProperties", "whose lookahead is not enforced"
