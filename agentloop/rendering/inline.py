"""Calls as tags inside of one long assistant turn, as papers have them whose models never leave their turn:

    ReTool      <code> ```python ... ``` </code>    <interpreter> ... </interpreter>      <answer> ... </answer>
    Search-R1   <search> ... </search>              <information> ... </information>      <answer> ... </answer>
    SkyRL-SQL   <sql> ... </sql>                    <observation> ... </observation>      <solution> ... </solution>

The closing tag of a call is a stop string: there the engine stops, the call runs, and its result goes behind it without
loss; then the same assistant turn goes on. What ends with the end-of-turn token is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentloop.errors import UserError
from agentloop.rendering.base import Continuation, ToolSchemas
from agentloop.rendering.template_renderer import TemplateRenderer
from agentloop.types.messages import InvalidCall, Message, ParsedTurn, ToolCall, text_of


@dataclass(slots=True, frozen=True, kw_only=True)
class InlineFormat:
    """How one tool is called, and how its results are shown."""

    tag: str
    """What stands between `<tag>` and `</tag>` is the argument."""
    tool: str
    argument: str
    """Of the tool; it gets text."""
    result: str
    """What follows the closing tag, with {} for the text of the result."""
    fenced: bool = False
    """The argument is what stands behind the last line that begins with ``` and before the next; without one, all."""

    def __post_init__(self) -> None:
        if self.result.count("{}") != 1:
            raise UserError(f"The result of an inline format needs one {{}} for what the tool gave: {self.result!r}.")

    @property
    def opening(self) -> str:
        return f"<{self.tag}>"

    @property
    def closing(self) -> str:
        return f"</{self.tag}>"


class InlineRenderer(TemplateRenderer):
    """A `TemplateRenderer` whose turns are parts of one turn of the template. Make it with `renderer_for(inline=...)`.

    Tools are not shown to the model: the prompt says in its own words how to call. Results are text; what of them
    spells a control token is encoded as the characters that it is.
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
        """Results go on in the same turn, with nothing of the template between; other messages follow its end."""
        if any(message["role"] != "tool" for message in messages):
            return super().render_continuation(sampled, messages)
        shown = "".join(self.inline.result.replace("{}", text_of(message["content"])) for message in messages)
        # The token that ended the turn may say more than the tag: mostly the line break that follows.
        behind = self._text(sampled).rpartition(self.inline.closing)[2]
        return Continuation([], self.encoder.encode_plain(shown.removeprefix(behind)))

    def parse(
        self,
        sampled: Sequence[int],
        *,
        complete: bool = True,
        over: bool = True,
        tools: ToolSchemas = (),
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        """A turn that ends with the closing tag is a call, with all its text before that as content."""
        text = self._text(sampled)
        if not over:
            return ParsedTurn(text.partition(self.inline.opening)[0].strip())
        said, closing, _ = text.rpartition(self.inline.closing)
        if not complete or not closing or self._has_ended(sampled):
            return ParsedTurn(text.strip())
        said, opening, argument = said.rpartition(self.inline.opening)
        if not opening:
            error = f"There is a {self.inline.closing} without {self.inline.opening} before it."
            return ParsedTurn(text.strip(), None, (InvalidCall(error, text, f"{call_id_prefix}0"),))
        argument = _in_fence(argument) if self.inline.fenced else argument.strip()
        call = ToolCall(self.inline.tool, {self.inline.argument: argument}, f"{call_id_prefix}0")
        return ParsedTurn(said.strip(), None, (call,))

    def write(self, message: Message) -> list[int]:
        """An assistant message as the model is to sample it: what `parse` reads. Its text is trusted, as that of a
        template; it may have one call."""
        text = text_of(message["content"])
        if reasoning := message.get("reasoning_content"):
            text = f"<think>\n{reasoning}\n</think>\n\n{text}"
        calls = message.get("tool_calls", ())
        for call in calls:
            argument = call["function"]["arguments"][self.inline.argument]
            inside = f"\n```\n{argument}\n```\n" if self.inline.fenced else argument
            text += f"{self.inline.opening}{inside}{self.inline.closing}"
        return self.encoder.encode_rendered(text) + ([] if calls else [self.stop_token_ids[0]])

    def _has_ended(self, sampled: Sequence[int]) -> bool:
        return bool(len(sampled)) and sampled[-1] in self._end_ids

    def _text(self, sampled: Sequence[int]) -> str:
        return self.encoder.decode(list(sampled)[: -1 if self._has_ended(sampled) else None])


def _in_fence(text: str) -> str:
    """The content of the last Markdown fence, closed or not; all of the text where there is none."""
    parts = text.split("```")
    if len(parts) == 1:
        return text.strip()
    # Odd parts are inside: of an even number of parts the last is, else the one before it.
    inside = parts[-1 if len(parts) % 2 == 0 else -2]
    return inside.partition("\n")[2].strip("\n")
