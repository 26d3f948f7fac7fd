"""A sample call of a tool, as the model of a renderer would write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentloop.errors import UserError
from agentloop.rendering.formats.base import PLAIN, ToolSchemas
from agentloop.rendering.inline import InlineRenderer
from agentloop.types.messages import Message, ToolCall

if TYPE_CHECKING:
    from agentloop.rendering.template_renderer import TemplateRenderer

_QUESTION = "zUserQkx7w"


def sample_turn(renderer: TemplateRenderer, tools: ToolSchemas) -> tuple[str, list[int]] | None:
    """Return the name of a tool and a turn that calls it; None if the template writes no call that can be parsed.

    The tool is the first, or the tool of an inline format. Its arguments are generated from its schema.
    """
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    inline = renderer.inline if isinstance(renderer, InlineRenderer) else None
    name = inline.tool if inline else next(iter(functions))
    parameters = functions.get(name, {}).get("parameters", {})
    arguments = {inline.argument: "1"} if inline else sample_value(parameters, parameters)
    for call_id in ("z00000000", f"functions.{name}:0"):  # Mistral needs nine characters, Kimi a name and a number
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        turn: Any = {"role": "assistant", "content": "", "tool_calls": [call]}
        if isinstance(renderer, InlineRenderer):
            return name, renderer.render_turn(turn)
        for ids in _written(renderer, turn, tools):
            read = renderer.parse(ids, tools=tools).calls
            if [(each.name, each.arguments) for each in read if isinstance(each, ToolCall)] == [(name, arguments)]:
                return name, ids
    return None


def _written(renderer: TemplateRenderer, turn: Message, tools: ToolSchemas) -> list[list[int]]:
    """Return possible token ids of the turn: the text that the template writes, after closing the thinking."""
    question: Message = {"role": "user", "content": _QUESTION}
    try:
        whole = renderer.template.render([question, turn], tools).rpartition(_QUESTION)[2]
        prompt = renderer.template.render([question], tools, generate=True).rpartition(_QUESTION)[2]
    except UserError:  # the template rejects calls in this form
        return []
    said = whole[next((at for at, (a, b) in enumerate(zip(whole, prompt, strict=False)) if a != b), len(prompt)) :]
    _, closing = (renderer.call_format or PLAIN).thinking
    stops = renderer.stop_token_ids
    found = []
    for text in (said, said.rpartition(closing)[2], closing + said, closing + said.rpartition(closing)[2]):
        ids = renderer.encoder.encode_rendered(text)
        end = next((index for index, token in enumerate(ids) if token in stops), len(ids))
        found.append([*ids[:end], ids[end] if end < len(ids) else stops[0]])
    return found


def sample_value(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Return a small value for a JSON schema with references in `root`; strings are "1", a valid word and program."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return sample_value(root.get("$defs", {}).get(name, {}), root)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return sample_value(schema[key][0], root)
    return _of_type(schema, root)


def _of_type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    kind = schema.get("type", "string")
    match kind[0] if isinstance(kind, Sequence) and not isinstance(kind, str) else kind:
        case "object":
            properties = schema.get("properties", {})
            return {name: sample_value(properties.get(name, {}), root) for name in schema.get("required", ())}
        case "array":
            return [sample_value(schema.get("items", {}), root)] * schema.get("minItems", 0)
        case "integer" | "number":
            least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            return min(max(1, least), schema.get("maximum", max(1, least)))
        case "boolean":
            return False
        case "null":
            return None
    return "1".ljust(schema.get("minLength", 1), "1")
