"""Read the tools and the items of a request of OpenAI's Responses API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentloop.gateway.turns.errors import ApiError
from agentloop.gateway.turns.messages import (
    Images,
    arguments_of,
    call_of,
    joined,
    name_of,
    names_of_calls,
    objects_of,
    text_in,
)
from agentloop.gateway.turns.requests import tool_of
from agentloop.types.messages import Content, ImagePart, Message, TextPart

_ROLES = {"system": "system", "developer": "system", "user": "user"}
TEXT_ARGUMENT = "input"
"""The argument of custom tools, which take a text."""


@dataclass(slots=True)
class Tools:
    """The tools of a request, in one list."""

    schemas: list[dict[str, Any]] = field(default_factory=list)
    custom: set[str] = field(default_factory=set)
    """Names of tools that take a text instead of a JSON object."""
    strict: set[str] = field(default_factory=set)
    """Names of tools whose arguments must match their schemas."""
    spaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Tools in a namespace, by name: the namespace and the name in it."""

    @property
    def functions(self) -> frozenset[str]:
        """Names of the tools that take a JSON object."""
        return frozenset(schema["function"]["name"] for schema in self.schemas) - self.custom

    def read(self, raw: Mapping[str, Any], where: str, space: str | None = None) -> None:
        kind = raw.get("type")
        if kind not in ("function", "custom", "namespace") or (kind == "namespace" and space is not None):
            raise ApiError(
                400,
                f"{where} is {kind!r}, which OpenAI's service runs. Only function, custom and namespace work here.",
                param=where,
            )
        name = name_of(raw, where)
        if kind == "namespace":
            for number, inner in enumerate(objects_of(raw.get("tools"), "tools", where)):
                self.read(inner, f"{where}.tools[{number}]", name)
            return
        if space is not None:
            name, inside = _full_name(space, name), name
            self.spaces[name] = (space, inside)
        parameters = raw.get("parameters")
        if kind == "custom":
            self.custom.add(name)
            parameters = {
                "type": "object",
                "properties": {TEXT_ARGUMENT: {"type": "string"}},
                "required": [TEXT_ARGUMENT],
            }
        if raw.get("strict") is True:
            self.strict.add(name)
        self.schemas.append(tool_of(name, raw.get("description"), parameters))


class Items:
    """Appends items to messages. Consecutive items of the assistant are one turn."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self._images = Images()
        self._names = names_of_calls(messages)
        self._answer: Message | None = None

    def read(self, items: str | Sequence[Mapping[str, Any]]) -> None:
        """Append the messages of an input. Raises an `ApiError` that names the invalid item."""
        if isinstance(items, str):
            items = [{"type": "message", "role": "user", "content": items}]
        for index, item in enumerate(items):
            where = f"input[{index}]"
            kind = item.get("type") or ("message" if "role" in item else None)
            if kind == "message" and item.get("role") == "assistant":
                answer = self._turn()
                answer["content"] = f"{answer['content']}{_text(item.get('content'), where)}"
            elif kind == "message":
                self._append(self._message(item, where))
            elif kind == "reasoning":
                self._think(item, where)
            elif kind in ("function_call", "custom_tool_call"):
                self._call(item, kind, where)
            elif kind in ("function_call_output", "custom_tool_call_output"):
                self._append(self._result(item, where))
            else:
                known = "message, reasoning, function_call, function_call_output, custom_tool_call"
                raise ApiError(400, f"{where} has the type {kind!r}; known: {known} and its output.", param=where)

    def _turn(self) -> Message:
        if self._answer is None:
            self._answer = {"role": "assistant", "content": ""}
            self._messages.append(self._answer)
        return self._answer

    def _append(self, message: Message) -> None:
        self._answer = None
        self._messages.append(message)

    def _message(self, item: Mapping[str, Any], where: str) -> Message:
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            known = ", ".join([*_ROLES, "assistant"])
            raise ApiError(400, f"{where} has the role {item.get('role')!r}; known: {known}.", param=where)
        content = self._content(item.get("content"), where)
        return {"role": "system", "content": content} if role == "system" else {"role": "user", "content": content}

    def _content(self, raw: Any, where: str) -> Content:
        if raw is None or isinstance(raw, str):
            return raw or ""
        if not isinstance(raw, list):
            raise ApiError(400, f"The content of {where} is neither text nor a list of parts.", param=where)
        return joined([self._part(part, where) for part in raw], "\n")

    def _part(self, raw: Any, where: str) -> TextPart | ImagePart:
        kind = raw.get("type") if isinstance(raw, Mapping) else None
        if kind == "input_image":
            return self._images.part(raw.get("image_url"), where)
        if kind not in ("input_text", "output_text", "text"):
            raise ApiError(
                400, f"A part of {where} has the type {kind!r}; known: input_text, input_image.", param=where
            )
        return {"type": "text", "text": text_in(raw, "text", where)}

    def _think(self, item: Mapping[str, Any], where: str) -> None:
        thinking = "".join(text_in(part, "text", where) for part in objects_of(item.get("content"), "content", where))
        if thinking:  # otherwise it was not sent back
            answer = self._turn()
            answer["reasoning_content"] = answer.get("reasoning_content", "") + thinking

    def _call(self, item: Mapping[str, Any], kind: str, where: str) -> None:
        name = name_of(item, where)
        if space := item.get("namespace"):
            name = _full_name(space, name)
        arguments = (
            {TEXT_ARGUMENT: item.get("input")} if kind == "custom_tool_call" else arguments_of(item.get("arguments"))
        )
        call = call_of(name, arguments, item.get("call_id"))
        self._names[call["id"]] = name
        answer = self._turn()
        answer["tool_calls"] = [*answer.get("tool_calls", ()), call]

    def _result(self, item: Mapping[str, Any], where: str) -> Message:
        call_id = str(item.get("call_id", ""))
        output = item.get("output")
        if output is not None and not isinstance(output, str | list):
            output = json.dumps(output)
        message: Message = {"role": "tool", "content": self._content(output, where), "tool_call_id": call_id}
        if name := self._names.get(call_id):
            message["name"] = name
        return message


def _text(raw: Any, where: str) -> str:
    """Return the text of an assistant's message."""
    if raw is None or isinstance(raw, str):
        return raw or ""
    texts = []
    for part in objects_of(raw, "content", where):
        kind = part.get("type")
        if kind not in ("output_text", "text", "input_text", "refusal"):
            raise ApiError(400, f"A part of {where} has the type {kind!r}; known: output_text, refusal.", param=where)
        texts.append(text_in(part, "refusal" if kind == "refusal" else "text", where))
    return "".join(texts)


def _full_name(space: str, name: str) -> str:
    """Return the model's name for a tool of a namespace."""
    return f"{space}__{name}"
