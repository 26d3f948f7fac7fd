"""`InlineRenderer`: calls as tags inside one long assistant turn, as in three papers.

    ReTool      <code> ```python ... ``` </code>    <interpreter> ... </interpreter>      <answer> ... </answer>
    Search-R1   <search> ... </search>              <information> ... </information>      <answer> ... </answer>
    SkyRL-SQL   <sql> ... </sql>                    <observation> ... </observation>      <solution> ... </solution>

The closing tag of a call is a stop string, at which the engine stops and the call runs. Its result follows without
loss, and the same assistant turn continues. Text that ends with the end-of-turn token is the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from agentloop.errors import UserError
from agentloop.rendering.base import Continuation, Progress, ToolSchemas
from agentloop.rendering.formats.turn_form import TurnForm
from agentloop.rendering.parsing import certain_text
from agentloop.rendering.template_renderer import TemplateRenderer
from agentloop.types.grammar import Grammar
from agentloop.types.messages import InvalidCall, Message, ParsedTurn, ToolCall, text_of


@dataclass(slots=True, frozen=True, kw_only=True)
class InlineFormat:
    """Tags of the calls of one tool, and the form of its results."""

    tag: str
    """Name of the tag; the text between `<tag>` and `</tag>` is the argument."""
    tool: str
    """Name of the tool that is called."""
    argument: str
    """Name of the argument that gets the text."""
    result: str
    """Text after the closing tag, with {} for the result."""
    fenced: bool = False
    """Whether the argument is the content of the last Markdown fence; without a fence it is the whole text."""

    def __post_init__(self) -> None:
        if self.result.count("{}") != 1:
            raise UserError(f"The result of an inline format is {self.result!r}, but it needs {{}} exactly once.")

    @property
    def opening(self) -> str:
        """The opening tag."""
        return f"<{self.tag}>"

    @property
    def closing(self) -> str:
        """The closing tag."""
        return f"</{self.tag}>"


class InlineRenderer(TemplateRenderer):
    """A `TemplateRenderer` whose turns are parts of one template turn. Create it with `renderer_for(inline=...)`.

    The prompt of the task explains how to call tools, so no schemas are shown. Control tokens in results are encoded as
    plain characters.
    """

    def __init__(self, tokenizer: Any, inline: InlineFormat, **options: Any) -> None:
        super().__init__(tokenizer, call_format=None, **options)
        self.inline = inline
        self.stop_strings = (inline.closing,)

    def render_prompt(self, messages: Sequence[Message], tools: ToolSchemas = ()) -> list[int]:
        return super().render_prompt(messages)

    def render_continuation(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: ToolSchemas = ()
    ) -> Continuation:
        """Continue the turn directly with results; end it before other messages."""
        if any(message["role"] != "tool" for message in messages):
            return super().render_continuation(sampled, messages)
        shown = "".join(self.inline.result.replace("{}", text_of(message["content"])) for message in messages)
        # The last token may contain more than the tag, usually a line break after it.
        after_tag = self._text(sampled).rpartition(self.inline.closing)[2]
        return Continuation([], self.encoder.encode_plain(shown.removeprefix(after_tag)))

    def parse(
        self,
        sampled: Sequence[int],
        *,
        complete: bool = True,
        tools: ToolSchemas = (),
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        """Parse a turn. It has a call if it ends with the closing tag; the text before the call is content."""
        text = self._text(sampled)
        before, closing, _ = text.rpartition(self.inline.closing)
        if not complete or not closing or self._has_ended(sampled):
            return ParsedTurn(text.strip())
        content, opening, argument = before.rpartition(self.inline.opening)
        if not opening:
            error = f"There is a {self.inline.closing} without {self.inline.opening} before it."
            return ParsedTurn(text.strip(), None, (InvalidCall(error, text, f"{call_id_prefix}0"),))
        argument = _in_fence(argument) if self.inline.fenced else argument.strip()
        call = ToolCall(self.inline.tool, {self.inline.argument: argument}, f"{call_id_prefix}0")
        return ParsedTurn(content.strip(), None, (call,))

    def parse_stream(
        self,
        sampled: Sequence[int],
        progress: Progress,
        *,
        tools: ToolSchemas = (),
        eager: Collection[str] = (),
        reads_calls: bool = True,
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        """Parse a turn as `parse` does; while it is sampled, it ends before the first opening tag."""
        if progress != "sampling":
            return self.parse(sampled, complete=reads_calls and progress == "complete", call_id_prefix=call_id_prefix)
        text = self._text(sampled).rstrip("\ufffd")
        return ParsedTurn(certain_text(text.partition(self.inline.opening)[0]).strip())

    def turn_grammar(self, form: TurnForm, tools: ToolSchemas = ()) -> Grammar:
        raise UserError("Turns with inline calls cannot be constrained: a turn is a part of a longer one.")

    def render_turn(self, message: Message, tools: ToolSchemas = ()) -> list[int]:
        """Return the ids of an assistant message with at most one call; its text is trusted like template text.

        The text may end with the call itself, closing tag included. The turn then continues after the result.
        """
        text = text_of(message["content"])
        if reasoning := message.get("reasoning_content"):
            text = f"<think>\n{reasoning}\n</think>\n\n{text}"
        calls = message.get("tool_calls", ())
        for call in calls:
            argument = call["function"]["arguments"][self.inline.argument]
            inside = f"\n```\n{argument}\n```\n" if self.inline.fenced else argument
            text += f"{self.inline.opening}{inside}{self.inline.closing}"
        goes_on = text.endswith(self.inline.closing)
        return self.encoder.encode_rendered(text) + ([] if goes_on else [self.stop_token_ids[0]])

    def _has_ended(self, sampled: Sequence[int]) -> bool:
        return bool(len(sampled)) and sampled[-1] in self.stop_token_ids

    def _text(self, sampled: Sequence[int]) -> str:
        return self.encoder.decode(list(sampled)[: -1 if self._has_ended(sampled) else None])


def _in_fence(text: str) -> str:
    """Return the content of the last Markdown fence, closed or not; the whole text if there is none."""
    parts = text.split("```")
    if len(parts) == 1:
        return text.strip()
    # Parts at odd indices are inside a fence.
    inside = parts[-1 if len(parts) % 2 == 0 else -2]
    return inside.partition("\n")[2].strip("\n")
