"""`TemplateRenderer`: a `Renderer` for any model with a prefix-stable chat template."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentloop.errors import UserError
from agentloop.rendering.base import Continuation, ToolSchemas
from agentloop.rendering.builtin import ways_out
from agentloop.rendering.encoding import TextEncoder
from agentloop.rendering.formats import NAMES
from agentloop.rendering.formats.base import PLAIN, CallFormat, Progress
from agentloop.rendering.formats.turn_form import TurnForm, turn_grammar
from agentloop.rendering.parsing import CallsInThinking, TurnParser
from agentloop.rendering.splice import Splice, make_splice
from agentloop.rendering.template import ChatTemplate
from agentloop.rendering.turn_end import TurnEnds
from agentloop.types.grammar import Grammar
from agentloop.types.messages import Message, ParsedTurn, images_of
from agentloop.vision.processor import ImageProcessor


@dataclass(slots=True)
class _Shape:
    """Splice of conversations of one shape, and whether it was tried."""

    tools: ToolSchemas
    """Kept alive because its `id()` is part of the key."""
    tried: bool = False
    splice: Splice | None = None


class TemplateRenderer:
    """Renders and parses for one tokenizer. Create it with `agentloop.rendering.renderer_for`.

    Control tokens in messages and tool schemas are encoded as plain characters: only the template writes `<|im_end|>`.
    Messages whose role is in `trusted_roles` may contain tags (`<think>`, `<tool_call>`).
    """

    stop_strings: tuple[str, ...] = ()

    def __init__(
        self,
        tokenizer: Any,
        *,
        call_format: CallFormat | None,
        trusted_roles: frozenset[str],
        chat_template_kwargs: Mapping[str, Any],
        vision: ImageProcessor | None = None,
        end_token_ids: Sequence[int] = (),
        calls_in_thinking: CallsInThinking = "feedback",
        cache_size: int = 256,
    ) -> None:
        """`cache_size` limits the number of cached prompts, and of cached conversation shapes."""
        self.tokenizer = tokenizer
        self.vision = vision
        self.encoder = TextEncoder(tokenizer.backend_tokenizer)
        self.template = ChatTemplate(
            tokenizer,
            self.encoder,
            trusted_roles=trusted_roles,
            thinking=(call_format or PLAIN).thinking,
            kwargs=chat_template_kwargs,
        )
        self._trusted = trusted_roles
        self.call_format = call_format
        self._ends = TurnEnds(self.template, self.encoder, call_format or PLAIN)
        end = self._ends.end
        self._turn_ends = [self.encoder.encode_rendered(token)[0] for token in end.stops]
        """Ids of the tokens that end a turn in the template."""
        eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys([*self._turn_ends, *eos, *end_token_ids]))
        self._opening_ids = {self.encoder.encode_rendered(token)[0] for token in end.openings}
        self._closing = self.encoder.encode_rendered(end.behind)
        self._end_of_cut = self.encoder.encode_rendered(end.before + (end.token or ""))
        self._added_ids = frozenset(self.encoder.added.values())
        self.starts_in_thinking = self._opens_thinking()
        """Whether the generation prompt opens the think tag and leaves it open."""
        self._parser = TurnParser(
            call_format, starts_in_thinking=self.starts_in_thinking, calls_in_thinking=calls_in_thinking
        )
        self._cache_size = cache_size
        self._lock = threading.Lock()
        """Held while a cache changes."""
        self._shapes: dict[tuple[Any, ...], _Shape] = {}
        self._shown_tools: dict[int, ToolSchemas] = {}
        """`id()` of tools -> tools whose rendering was checked."""
        self._prompts: dict[tuple[Any, ...], tuple[ToolSchemas, list[int]]] = {}

    def render_prompt(self, messages: Sequence[Message], tools: ToolSchemas = ()) -> list[int]:
        key = _exact_key(messages, tools)
        if key is not None and (known := self._prompts.get(key)) is not None:
            return known[1].copy()
        if tools and id(tools) not in self._shown_tools:
            self._check_tools(self._prompt_text(messages, tools), tools)
            self._keep(self._shown_tools, id(tools), tools)
        ids = self._spliced(True, messages, tools)
        if ids is None:
            text = self._prompt_text(messages, tools)
            ids = self._with_images(self.encoder.encode_rendered(text, at_start=True), messages)
        if key is not None:
            self._keep(self._prompts, key, (tools, ids.copy()))
        return ids

    def render_continuation(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: ToolSchemas = ()
    ) -> Continuation:
        ids = self._spliced(False, messages, tools)
        if ids is None:
            ids = self._with_images(self.encoder.encode_rendered(self.continuation_text(messages, tools)), messages)
        last = sampled[-1] if len(sampled) else None
        if ids[:1] and ids[0] in self._opening_ids:
            # The token that opens the next message also ends the turn, so the model samples it.
            return Continuation([], ids[1:] if last == ids[0] else ids)
        # The line break after the turn is a separate segment if an added token follows it.
        length = len(self._closing)
        if ids[:length] != self._closing or (len(ids) > length and ids[length] not in self._added_ids):
            length = 0
        closing = ids[:length]
        if last not in self._turn_ends:  # also after an end-of-text token, which the template does not know
            closing = self._end_of_cut + closing
        return Continuation(closing, ids[length:])

    def render_turn(self, message: Message, tools: ToolSchemas = ()) -> list[int]:
        """Return the ids that a model samples for an assistant message, end of turn included: the inverse of `parse`.

        Raises `UserError` if the template does not write the message after its generation prompt.
        """
        return self.encoder.encode_rendered(self._ends.turn_text(message, tools))

    def parse(
        self,
        sampled: Sequence[int],
        *,
        complete: bool = True,
        tools: ToolSchemas = (),
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        text = self._text_of_turn(sampled)
        return self._parser.parse(text, complete=complete, tools=tools, call_id_prefix=call_id_prefix)

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
        return self._parser.parse_stream(
            self._text_of_turn(sampled),
            progress,
            tools=tools,
            eager=eager,
            reads_calls=reads_calls,
            call_id_prefix=call_id_prefix,
        )

    def _text_of_turn(self, sampled: Sequence[int]) -> str:
        ids = list(sampled)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self.encoder.decode(ids)

    def turn_grammar(self, form: TurnForm, tools: ToolSchemas = ()) -> Grammar:
        text = turn_grammar(form, self.call_format, tools, starts_in_thinking=self.starts_in_thinking)
        return Grammar(text, self.stop_token_ids)

    def encode(self, text: str) -> list[int]:
        return self.encoder.encode_plain(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self.encoder.decode(ids)

    @property
    def cache_sizes(self) -> tuple[int, int]:
        """Number of cached prompts, and of cached conversation shapes."""
        return len(self._prompts), len(self._shapes)

    def _keep(self, cache: dict[Any, Any], key: Any, value: Any) -> None:
        """Add an entry, replacing the oldest one if the cache is full; several threads may do this."""
        with self._lock:
            if len(cache) >= self._cache_size and key not in cache:
                del cache[next(iter(cache))]
            cache[key] = value

    def _spliced(self, prompt: bool, messages: Sequence[Message], tools: ToolSchemas) -> list[int] | None:
        """Return the ids from a splice; None if the shape is new or its template does not allow splices.

        A splice is made when a shape occurs for the second time. It takes about thirty renders, too many for a system
        prompt that is used once.
        """
        key = self._shape_key(prompt, messages, tools)
        if key is None:
            return None
        shape = self._shapes.get(key)
        if shape is None:
            self._keep(self._shapes, key, _Shape(tools))
            return None
        if not shape.tried:
            shape.tried = True
            shape.splice = self._make_splice(prompt, messages, tools)
        return None if shape.splice is None else shape.splice.fill(messages, self.encoder)

    def _with_images(self, ids: list[int], messages: Sequence[Message]) -> list[int]:
        """Return the ids with one image token per feature of each image. Raises `UserError`."""
        images = images_of(messages)
        if self.vision is not None:
            return self.vision.expand(ids, [self.vision.num_tokens(image) for image in images])
        if images:
            raise UserError(
                f"A message has an image, but {self.template.name} has no vision tower. Use a vision-language model, "
                "or remove images from the dataset and the tool results."
            )
        return ids

    def _shape_key(self, prompt: bool, messages: Sequence[Message], tools: ToolSchemas) -> tuple[Any, ...] | None:
        key: list[Any] = [prompt, id(tools)]
        for message in messages:
            for value in message.values():
                if value.__class__ is not str:
                    return None
            role = message["role"]
            key.append(tuple(message.items()) if role in self._trusted else (role, *message))
        return tuple(key)

    def _make_splice(self, prompt: bool, messages: Sequence[Message], tools: ToolSchemas) -> Splice | None:
        text_of = self._prompt_text if prompt else self.continuation_text
        slots = [
            (index, name)
            for index, message in enumerate(messages)
            if message["role"] not in self._trusted
            for name in message
            if name != "role"
        ]
        try:
            return make_splice(lambda shown: text_of(shown, tools), messages, slots, self.encoder, at_start=prompt)
        except UserError:  # the template accepts only certain contents, such as call ids with nine characters
            return None

    def _prompt_text(self, messages: Sequence[Mapping[str, Any]], tools: ToolSchemas) -> str:
        return self.template.render(messages, tools, generate=True)

    def continuation_text(self, messages: Sequence[Mapping[str, Any]], tools: ToolSchemas) -> str:
        """Return the text that the template writes after a complete assistant turn."""
        return self._ends.text_after(messages, tools)

    def _opens_thinking(self) -> bool:
        question = [{"role": "user", "content": "zUserQkx7w"}]
        prompt = self.template.render(question, generate=True)
        bare = self.template.render(question)
        prompt = prompt[len(bare) if prompt.startswith(bare) else 0 :]
        opening, closing = (self.call_format or PLAIN).thinking
        return prompt.rfind(opening) > prompt.rfind(closing)

    def _check_tools(self, prompt: str, tools: ToolSchemas) -> None:
        prompt = self.encoder.escaping.show(prompt)
        hidden = [tool["function"]["name"] for tool in tools if tool["function"]["name"] not in prompt]
        if hidden:
            raise UserError(
                f"The chat template of {self.template.name} does not show the tools {', '.join(hidden)} to the model. "
                f"{ways_out(self.encoder.added)}"
            )
        if tools and self.call_format is None:
            raise UserError(
                f"The chat template of {self.template.name} does not show how the model writes tool calls. "
                f"Set `tool_format` (rendering.tool_format of a run) to one of {', '.join(NAMES)}."
            )


def _exact_key(messages: Sequence[Message], tools: ToolSchemas) -> tuple[Any, ...] | None:
    """Return a cache key of the exact messages; None if they contain more than text."""
    if any(value.__class__ is not str for message in messages for value in message.values()):
        return None
    return (id(tools), *(tuple(message.items()) for message in messages))
