"""`VerlTools`: loads the tools of verl's `tool_config_path`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from agentloop.errors import UserError
from agentloop.registry.named_objects import load_object
from agentloop.tools.base import Tool
from agentloop.tools.verl.stand_ins import OpenAIFunctionToolSchema
from agentloop.tools.verl.tool import VerlTool


class VerlTools:
    """Source of the tools in verl's YAML file, whose entries have `class_name`, `config` and `tool_schema`.

    `config` is the path of the file. Classes are importable names or 'file.py:Class'. With `per_call`, each call
    creates and releases an instance, as in verl since 0.5; otherwise an instance lives as long as its trajectory.
    `timeout` is the seconds of one call. Raises `UserError` for a file that is not usable.
    """

    needs = "config"
    """Required options, for `agentloop tools list`."""

    def __init__(self, config: str, *, per_call: bool = False, timeout: float = 60.0) -> None:
        self._path = Path(config)
        self._per_call = per_call
        self._timeout = timeout

    def tools(self) -> list[Tool]:
        """Create one object of each class, as verl does in each of its workers."""
        return [self._tool(entry) for entry in self._entries()]

    def _entries(self) -> list[Mapping[str, Any]]:
        try:
            read = yaml.safe_load(self._path.read_text())
        except FileNotFoundError as error:
            raise UserError(f"There is no tool config of verl at {self._path}.") from error
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise UserError(f"Cannot read verl's tool config {self._path}: {error}") from error
        entries = read.get("tools") if isinstance(read, Mapping) else None
        if not isinstance(entries, list) or not all(isinstance(e, Mapping) and "class_name" in e for e in entries):
            raise UserError(
                f"{self._path} is not a tool config of verl: it needs a list 'tools' whose entries have a 'class_name'."
            )
        return entries

    def _tool(self, entry: Mapping[str, Any]) -> Tool:
        name, config, given = str(entry["class_name"]), dict(entry.get("config") or {}), entry.get("tool_schema")
        if str(config.get("type", "native")) != "native":
            raise UserError(
                f"{self._path}: {name} has the type {config['type']!r}, but only native tools are supported. For an "
                "MCP server use the tool 'mcp'."
            )
        made = load_object(name if ":" in name else ":".join(name.rpartition(".")[::2]), "tool of verl")
        try:
            inner = made(config, _schema_class(made).model_validate(given) if given else None)
            shown = given or inner.tool_schema.model_dump(exclude_none=True)
            function = shown["function"]
        except (TypeError, ValueError, KeyError, AttributeError, AssertionError) as error:
            raise UserError(
                f"{self._path}: {name} cannot be created: {type(error).__name__}: {error}. Its constructor must accept "
                "(config, tool_schema), and its schema must be in the file or from get_openai_tool_schema()."
            ) from error
        return VerlTool(inner, function, timeout=self._timeout, per_call=self._per_call)


def _schema_class(made: Any) -> Any:
    """Return verl's schema class for tools based on verl's own class, else ours."""
    bases = {base.__module__: base for base in getattr(made, "__mro__", ())}
    if "verl.tools.base_tool" in bases:
        return load_object("verl.tools.schemas:OpenAIFunctionToolSchema", "schema")
    return OpenAIFunctionToolSchema
