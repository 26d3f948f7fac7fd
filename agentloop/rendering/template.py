"""`ChatTemplate`: renders messages as text with the chat template of a tokenizer; failures become a `UserError`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentloop.errors import UserError
from agentloop.rendering.encoding import TextEncoder
from agentloop.rendering.formats.base import ToolSchemas
from agentloop.types.messages import text_of


class ChatTemplate:
    """Renders conversations with `tokenizer.apply_chat_template`.

    Control tokens in everything that the template inserts are hidden first (`Escaping`): contents, thinking, names,
    calls and tool schemas. Only the content of messages whose role is in `trusted_roles` keeps its `tags`.
    """

    def __init__(
        self,
        tokenizer: Any,
        encoder: TextEncoder,
        *,
        trusted_roles: frozenset[str],
        thinking: tuple[str, str],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._kwargs = dict(kwargs)
        self.trusted_roles = trusted_roles
        self.name = str(getattr(tokenizer, "name_or_path", "") or "the model")
        self.text = _source(tokenizer)
        self.eos_token: str | None = getattr(tokenizer, "eos_token", None)
        self._seams = encoder.escaping.seams(self.text)
        self._shown_tools: tuple[ToolSchemas, list[Any]] = ((), [])
        """The last tools, and their form with hidden control tokens."""
        self._arguments_as_text = False
        self.tags: frozenset[str] = frozenset()
        """Added tokens that trusted messages may contain: think tags, and others that are not marked as special and do
        not begin or end messages."""
        self._arguments_as_text = self._wants_text()
        self.tags = frozenset(encoder.added) - encoder.special - self._turn_tokens() | set(thinking)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: ToolSchemas = (), *, generate: bool = False) -> str:
        """Return the text of `messages`; `generate` adds the generation prompt. Raises `UserError`."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [self._shown(message) for message in messages],
                    tools=self._tools(tools) or None,
                    tokenize=False,
                    add_generation_prompt=generate,
                    **self._kwargs,
                )
            )
        except UserError:
            raise
        # Templates are programs: they raise errors of jinja, and any error of Python operators.
        except Exception as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            problem = f"{type(error).__name__}: {error}".removesuffix(".")
            raise UserError(
                f"The chat template of {self.name} rejects a conversation with the roles ({roles}): {problem}. "
                "Change the messages, or the template (chat_template.jinja)."
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

    def _turn_tokens(self) -> set[str]:
        """Return the added tokens around messages."""
        question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
        found: set[str] = set()
        for messages in ([question], [question, answer, question], [{"role": "system", "content": "c"}, question]):
            with contextlib.suppress(UserError):  # the template rejects such a conversation
                found.update(piece.strip() for piece in self._encoder.split(self.render(messages, generate=True))[1::2])
        return found

    def _tools(self, tools: ToolSchemas) -> list[Any]:
        known, shown = self._shown_tools
        if known is not tools:
            shown = [self._encoder.escaping.hide_inside(tool, seams=self._seams) for tool in tools]
            self._shown_tools = (tools, shown)
        return shown

    def _shown(self, message: Mapping[str, Any]) -> dict[str, Any]:
        escaping = self._encoder.escaping
        keep = self.tags if message["role"] in self.trusted_roles else frozenset()
        shown: dict[str, Any] = {"role": message["role"]}
        for field, value in message.items():
            if field == "content":
                shown[field] = self._content(value, keep)
            elif field == "tool_calls":
                calls = [_with_encoded_arguments(call) for call in value] if self._arguments_as_text else value
                shown[field] = escaping.hide_inside(calls, seams=self._seams)
            elif isinstance(value, str) and field != "role":
                shown[field] = escaping.hide(value, seams=self._seams)
            else:
                shown[field] = value
        return shown

    def _content(self, content: Any, keep: frozenset[str]) -> Any:
        parts = self._parts(content) if isinstance(content, list) else content
        if isinstance(parts, str):
            return self._encoder.escaping.hide(parts, keep=keep, seams=self._seams)
        if not isinstance(parts, list):
            return parts
        return [
            {**part, "text": self._encoder.escaping.hide(part["text"], keep=keep, seams=self._seams)}
            if part["type"] == "text"
            else part
            for part in parts
        ]

    def _parts(self, content: list[Any]) -> str | list[dict[str, Any]]:
        """Return the parts in the form that the template needs: plain text if there are no images."""
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
