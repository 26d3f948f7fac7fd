"""`ChatTemplate`: messages to text by the chat template of a tokenizer; all failures become a `UserError`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentloop.errors import UserError
from agentloop.rendering.encoding import TextEncoder
from agentloop.rendering.formats.base import ToolSchemas
from agentloop.types.messages import text_of


class ChatTemplate:
    """Renders conversations with `tokenizer.apply_chat_template`.

    All text fields of messages whose role is not in `trusted_roles` are escaped first (`TextEncoder.escape`), so they
    cannot contain control tokens.
    """

    def __init__(
        self, tokenizer: Any, encoder: TextEncoder, *, trusted_roles: frozenset[str], kwargs: Mapping[str, Any]
    ) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._kwargs = dict(kwargs)
        self.trusted_roles = trusted_roles
        self.name = str(getattr(tokenizer, "name_or_path", "") or "the model")
        self.text = _source(tokenizer)
        self.eos_token: str | None = getattr(tokenizer, "eos_token", None)
        self._arguments_as_text = False
        self._arguments_as_text = self._wants_text()

    def render(self, messages: Sequence[Mapping[str, Any]], tools: ToolSchemas = (), *, generate: bool = False) -> str:
        """Return the text of `messages`; `generate` adds the generation prompt. Raises `UserError`."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [self._shown(message) for message in messages],
                    tools=list(tools) or None,
                    tokenize=False,
                    add_generation_prompt=generate,
                    **self._kwargs,
                )
            )
        except UserError:
            raise
        # Templates are programs: they raise errors of jinja, and any error of Python's operators.
        except Exception as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise UserError(
                f"The chat template of {self.name} refuses a conversation of the roles ({roles}): "
                f"{type(error).__name__}: {error}. Change the messages, or the template (chat_template.jinja)."
            ) from error

    def _wants_text(self) -> bool:
        """Return whether the template needs the arguments of calls as JSON text, because it inserts them unchanged."""
        function = {"name": "f", "arguments": {"a": "1"}}
        calls = [{"id": "z00000000", "type": "function", "function": function}]
        turn = {"role": "assistant", "content": "", "tool_calls": calls}
        try:
            self.render([{"role": "user", "content": "a"}, turn])
        except UserError as error:
            return isinstance(error.__cause__, TypeError)
        return False

    def _shown(self, message: Mapping[str, Any]) -> dict[str, Any]:
        shown = dict(message)
        if self._arguments_as_text and shown.get("tool_calls"):
            shown["tool_calls"] = [_with_encoded_arguments(call) for call in shown["tool_calls"]]
        content = shown.get("content")
        if isinstance(content, list):
            shown["content"] = self._parts(content)
        if shown["role"] not in self.trusted_roles:
            escape = self._encoder.escape
            for field, value in shown.items():
                if isinstance(value, str):
                    shown[field] = escape(value)
            if isinstance(shown.get("content"), list):
                shown["content"] = [
                    {**part, "text": escape(part["text"])} if part["type"] == "text" else part
                    for part in shown["content"]
                ]
        return shown

    def _parts(self, content: list[Any]) -> str | list[dict[str, Any]]:
        """Return the parts in the form of the template: plain text if there are no images."""
        if all(part["type"] == "text" for part in content):
            return text_of(content)
        if "image" not in self.text:
            raise UserError(
                f"A message has an image, but the chat template of {self.name} cannot show one. Use a "
                "vision-language model, or remove images from the dataset and the tool results."
            )
        return [dict(part) if part["type"] == "text" else {"type": "image"} for part in content]


def _with_encoded_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function, arguments = call["function"], call["function"]["arguments"]
    encoded = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": encoded}}


def _source(tokenizer: Any) -> str:
    source = tokenizer.chat_template
    return "\n".join(source.values()) if isinstance(source, dict) else str(source)
