"""The command `agentloop config`: every key with type, default and meaning, from the classes that define it."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from agentloop.config.run import RunConfig
from agentloop.errors import UserError, nearest
from agentloop.registry.options import Config
from agentloop.rendering.inline import InlineFormat
from agentloop.types.limits import Limits

_DATACLASSES = {"LimitsConfig": Limits, "InlineConfig": InlineFormat}
"""Section -> dataclass to which it adds no keys."""
_TYPES = {"string": "string", "integer": "integer", "number": "number", "boolean": "true or false", "null": "null"}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


@dataclass(slots=True, frozen=True)
class Key:
    """One key of the configuration."""

    name: str
    """Dotted path; `[]` stands for an item of a list."""
    type: str
    default: str
    """Default as YAML writes it; empty for sections and for keys that must be set."""
    help: str
    is_section: bool


def complete_key(incomplete: str) -> list[str]:
    """Return the keys that begin with `incomplete`."""
    return [key.name for key in keys() if key.name.startswith(incomplete)]


def config(
    key: Annotated[
        str | None,
        typer.Argument(help="A key or a section, such as learner.lr or staleness.", autocompletion=complete_key),
    ] = None,
) -> None:
    """Explain a key of the configuration, with its type and default; without KEY, list all keys."""
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    for each in keys() if key is None else find(key):
        kind = each.type if not each.default else f"{each.type}; default {each.default}"
        console.print(f"[bold]{each.name}[/bold]" if each.is_section else each.name, end="", markup=each.is_section)
        console.print(f"  ({kind})", style="dim", markup=False)
        console.print(f"    {each.help}", markup=False)


def keys(config: type[Config] = RunConfig) -> list[Key]:
    """Return all keys of a config, sections before their own keys."""
    schema = config.model_json_schema(mode="serialization")  # omits keys that only the resolved config sets
    return list(_keys(schema, schema["$defs"], ""))


def find(name: str) -> list[Key]:
    """Return a key, or a section with its keys. Raises `UserError` with the nearest key for an unknown name."""
    known = {key.name: key for key in keys()}
    chosen = re.sub(r"\.\d+(?=\.|$)", "[]", name)
    if chosen not in known:
        alike = [repr(key) for key in known if key.endswith(f".{chosen}")]
        hint = f" Did you mean {' or '.join(alike)}?" if alike else nearest(name, known)
        raise UserError(f"There is no key {name!r}.{hint} `agentloop config` lists all keys.")
    return [key for key in known.values() if key.name == chosen or key.name.startswith((f"{chosen}.", f"{chosen}[]."))]


def _keys(schema: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str) -> Iterator[Key]:
    inherited = _attribute_docstrings(_DATACLASSES[title]) if (title := schema.get("title")) in _DATACLASSES else {}
    required = schema.get("required", ())
    for name, value in schema["properties"].items():
        path = prefix + name
        section, is_list = _section(value, definitions)
        text = value.get("description") or inherited.get(name) or (section or {}).get("description", "")
        if section is None:
            default = "" if name in required else _default(value)
            yield Key(path, _type(value, definitions), default, " ".join(text.split()), is_section=False)
        else:
            yield Key(path, "list" if is_list else "section", "", " ".join(text.split()), is_section=True)
            yield from _keys(section, definitions, f"{path}[]." if is_list else f"{path}.")


def _section(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the schema of a section, and whether it describes the items of a list."""
    for choice in _choices(value):
        resolved = _resolved(choice, definitions)
        if "properties" in resolved:
            return resolved, False
        if "items" in resolved:
            section, _ = _section(resolved["items"], definitions)
            if section is not None:
                return section, True
    return None, False


def _choices(value: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the members of a union, those of unions in it included, or the only schema."""
    members = value.get("anyOf") or value.get("oneOf")
    return [value] if members is None else [choice for member in members for choice in _choices(member)]


def _resolved(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = value.get("$ref")
    return value if reference is None else definitions[reference.removeprefix("#/$defs/")]


def _type(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    value = _resolved(value, definitions)
    if (choices := _choices(value)) != [value]:
        return " or ".join(dict.fromkeys(_type(choice, definitions) for choice in choices))
    if "enum" in value:
        return " or ".join(map(str, value["enum"]))
    if "const" in value:
        return str(value["const"])
    kind = value.get("type")
    if kind == "array":
        items = value.get("prefixItems") or ([value["items"]] if "items" in value else [])
        names = dict.fromkeys(_type(item, definitions) for item in items if item)
        return f"list of {' or '.join(names)}" if names else "list"
    if kind == "object":
        return "mapping"
    bounds = "".join(f", {text} {value[name]:g}" for name, text in _BOUNDS.items() if name in value)
    return _TYPES.get(str(kind), "anything") + bounds


def _default(value: Mapping[str, Any]) -> str:
    made: Any = [] if value.get("type") == "array" else {}  # by a default factory, which the schema does not show
    return json.dumps(value.get("default", made), ensure_ascii=False)


def _attribute_docstrings(cls: type) -> dict[str, str]:
    """Return the docstring after each attribute of a dataclass; pydantic reads only those of its own classes."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for statement, after in zip(definition.body, definition.body[1:], strict=False):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = text
    return found
