"""`TurnEnds`: finds the text that a chat template writes after an assistant turn.

This text is the difference between two renders of a small artificial conversation: [user, assistant] and [user,
assistant, new messages]. Only the text after a sentinel counts, which is the last text of the assistant: its content,
or an argument of its call. The real history is never rendered again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from agentloop.errors import UserError
from agentloop.rendering.encoding import TextEncoder
from agentloop.rendering.formats.base import CallFormat, ToolSchemas
from agentloop.rendering.template import ChatTemplate

_ASSISTANT = "zAsstQkx7w"
_USER = {"role": "user", "content": "zUserQkx7w"}
_RESULT_TEXT = "zToolQkx7w"
_RESULT = {"role": "tool", "name": "f", "tool_call_id": "z00000000", "content": _RESULT_TEXT}


@dataclass(slots=True, frozen=True)
class TurnEnd:
    """The end of an assistant turn in a template."""

    before: str
    """Text between the content and the end-of-turn token; usually empty."""
    token: str | None
    """End-of-turn token; None if turns end with the token that opens the next message (GLM)."""
    behind: str
    """Text after the token that still belongs to the turn, such as the line break of ChatML."""
    stops: tuple[str, ...]
    """All tokens that end a turn with or without calls; `token` comes first."""
    openings: tuple[str, ...] = ()
    """Tokens of `stops` that the template writes at the beginning of the next message."""


class TurnEnds:
    """Finds how turns end in one template, with calls in `call_format`."""

    def __init__(self, template: ChatTemplate, encoder: TextEncoder, call_format: CallFormat) -> None:
        self._template = template
        self._encoder = encoder
        self._format = call_format
        opening, closing = (re.escape(tag) for tag in call_format.thinking)
        # Templates may omit the thinking of past turns. The stream keeps it, so this does not break prefix stability.
        self._thinking = re.compile(rf"{opening}.*?{closing}\s*", re.DOTALL)
        self.end = self._find()
        self._prompt: tuple[ToolSchemas | None, str] = (None, "")
        """The last tools passed to `turn_text`, and the prompt with them."""
        self._shows_results: bool | None = None
        """Whether the template shows tool results; None until the first result."""

    def _find(self) -> TurnEnd:
        """Find the end of a turn. Raises `UserError` if no added token ends it."""
        answer = {"role": "assistant", "content": _ASSISTANT}
        alone = self._pieces([_USER, answer])
        try:
            followed = self._pieces([_USER, answer, _USER])
        except UserError:  # the template rejects a message after an answer
            followed = alone
        tokens = range(1, _num_shared(alone, followed), 2)
        if tokens:
            last = tokens[-1]
            before = "".join(alone[:last])
            behind = alone[last + 1][: _num_shared(alone[last + 1], followed[last + 1])]
            token: str | None = alone[last]
        elif len(alone) == 3 and followed[1:2] == [self._format.past_end]:
            before, token, behind = alone[0], alone[1], ""
        elif len(alone) == 1 and len(followed) > 1:
            return self._opened_by_the_next(alone[0], followed)
        else:
            raise self._endless(alone)
        if "".join(alone[0::2][: len(tokens)]).strip() or behind.strip():
            raise self._endless(alone)
        assert token is not None
        with_calls = self._of_calls(token)
        stops = tuple(dict.fromkeys([token, *([with_calls] if with_calls else []), *self._others()]))
        opening = self._format.result_opening
        return TurnEnd(before, token, behind, stops, (opening,) if opening in stops and opening else ())

    def _opened_by_the_next(self, behind: str, followed: Sequence[str]) -> TurnEnd:
        """Return the end of a turn for templates in which the model samples the token that opens the next message."""
        if behind.strip() or followed[0].strip():
            raise self._endless([behind])
        openings = [followed[1]]
        for assistant in _turns_with_calls([_RESULT]):
            try:
                before = self._behind([_USER, assistant])
                after = self._behind([_USER, assistant, _RESULT])
            except UserError:  # the template rejects calls, or this form of them
                continue
            pieces = self._encoder.split(after.removeprefix(before))
            if after.startswith(before) and len(pieces) > 1:
                openings.append(pieces[1])
                break
        eos = self._template.eos_token
        ends = [eos] if eos is not None and eos in self._encoder.added else []
        return TurnEnd("", None, "", tuple(dict.fromkeys([*openings, *self._others(), *ends])), tuple(openings))

    def _of_calls(self, token: str) -> str | None:
        """Return the token that ends a turn with calls, which may differ from `token`; None if there are no calls."""
        for assistant in _turns_with_calls([_RESULT]):
            try:
                pieces = self._pieces([_USER, assistant])
            except UserError:
                continue
            pieces = self._without_end_of_text(pieces, token)
            return pieces[-2] if len(pieces) > 1 and not pieces[-1].strip() else None
        return None

    def _without_end_of_text(self, pieces: list[str], token: str | None) -> list[str]:
        """Return the pieces without the end-of-text token after the last turn, if it differs from `token`."""
        eos = self._template.eos_token
        ends = len(pieces) > 3 and pieces[-2] == eos != token and not pieces[-1]
        return pieces[:-2] if ends else pieces

    def _others(self) -> list[str]:
        return [token for token in self._format.ends if token in self._encoder.added]

    def text_after(self, messages: Sequence[Mapping[str, Any]], tools: ToolSchemas) -> str:
        """Return the text after the end-of-turn token for `messages`, with the next generation prompt.

        It begins with `TurnEnd.behind`, or with one of `TurnEnd.openings` if the turn ends with it. Raises `UserError`
        if the template changes the text before the messages.
        """
        if any(message["role"] == "tool" for message in messages):
            self._check_results()
        error: UserError | None = None
        for assistant in _answered_turns(messages):
            try:
                before = self._template.render([_USER, assistant], tools)
                after = self._template.render([_USER, assistant, *messages], tools, generate=True)
                return self._new_text(before, after, messages)
            except UserError as refused:  # several calls in a turn, or content together with a call
                error = error or refused
        assert error is not None
        raise error

    def turn_text(self, message: Mapping[str, Any], tools: ToolSchemas) -> str:
        """Return the text of an assistant message after the generation prompt, with the token that ends the turn.

        Raises `UserError` if the template does not write the message after its generation prompt.
        """
        known, before = self._prompt
        if known is not tools:
            before = self._template.render([_USER], tools, generate=True)
            self._prompt = (tools, before)
        whole = self._template.render([_USER, message], tools)
        if whole.startswith(before):
            text = whole[len(before) :]
        else:  # the prompt opens the thinking, but the message has none
            opening, closing = self._format.thinking
            head = before.rpartition(opening)[0]
            if not head or not whole.startswith(head):
                raise _refused(self._template, message, before, whole)
            text = closing + whole[len(head) :].removeprefix(opening).removeprefix(closing)
        pieces = self._without_end_of_text(self._encoder.split(text), self.end.token)
        ends = [place for place in range(1, len(pieces), 2) if pieces[place].strip() in self.end.stops]
        if ends and not "".join(pieces[ends[-1] + 1 :]).strip():
            return "".join(pieces[: ends[-1] + 1])
        if not self.end.openings:
            raise _refused(self._template, message, before, whole)
        # The token that opens the next message ends the turn: tool results follow calls, user messages follow other
        # turns.
        return "".join(pieces) + self.end.openings[-1 if message.get("tool_calls") else 0]

    def _check_results(self) -> None:
        """Raise `UserError` unless the template shows tool results, which templates of models without tools do not."""
        if self._shows_results is None:
            conversations = [[_USER, turn, _RESULT] for turn in _turns_with_calls([_RESULT])]
            texts = [text for text in map(self._rendered, conversations) if text is not None]
            self._shows_results = not texts or any(_RESULT_TEXT in text for text in texts)
        if not self._shows_results:
            raise UserError(
                f"The chat template of {self._template.name} does not show tool results to the model. Use a model "
                "whose template takes messages of the role 'tool', or another template (chat_template.jinja)."
            )

    def _rendered(self, messages: Sequence[Mapping[str, Any]]) -> str | None:
        try:
            return self._template.render(messages)
        except UserError:
            return None

    def _new_text(self, before: str, after: str, messages: Sequence[Mapping[str, Any]]) -> str:
        head, tail = _cut(before, self._template)
        # The new messages may contain the sentinel, too.
        parts = after.split(_ASSISTANT, before.count(_ASSISTANT))
        new_head, new_tail = _ASSISTANT.join(parts[:-1]), parts[-1]
        if self._thinking.sub("", head) != self._thinking.sub("", new_head):
            raise _unstable(self._template, messages, head, new_head)
        behind = self.end.behind
        for kept in self._kept(tail):
            if new_tail.startswith(kept):
                return new_tail[len(kept) - (len(behind) if behind and kept.endswith(behind) else 0) :]
        raise _unstable(self._template, messages, tail, new_tail)

    def _kept(self, tail: str) -> Iterator[str]:
        """Yield the possible forms of the end of a turn that is followed by another message."""
        opening, past_end, token = self._format.result_opening, self._format.past_end, self.end.token
        if opening and tail.endswith(opening):
            yield tail.removesuffix(opening)
        yield tail
        yield "".join(self._without_end_of_text(self._encoder.split(tail), token))
        if past_end and token and tail.endswith(token):
            yield tail.removesuffix(token) + past_end

    def _pieces(self, messages: Sequence[Mapping[str, Any]]) -> list[str]:
        return self._encoder.split(self._behind(messages))

    def _behind(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return _cut(self._template.render(messages), self._template)[1]

    def _endless(self, behind: Sequence[str]) -> UserError:
        return UserError(
            f"The chat template of {self._template.name} does not end an assistant turn with one end-of-turn token: "
            f"after the content it writes {''.join(behind)!r}. Use a template that writes one (chat_template.jinja), "
            "and make it an added token of the tokenizer."
        )


def _answered_turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the assistant turn that `messages` answer, in all forms that templates accept."""
    results = []
    for message in messages:
        if message["role"] != "tool":
            break
        results.append(message)
    if not results:
        yield {"role": "assistant", "content": _ASSISTANT}
        return
    yield from _turns_with_calls(results)
    if len(results) > 1:
        yield from _turns_with_calls(results[:1])


def _turns_with_calls(results: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield turns with one call per result; some templates omit or move content next to calls or omit arguments."""
    for content, argument in (("", _ASSISTANT), (_ASSISTANT, "1")):
        calls = [
            {
                "id": message.get("tool_call_id", "z00000000"),
                "type": "function",
                "function": {"name": message.get("name", "unknown"), "arguments": {"a": argument}},
            }
            for message in results
        ]
        yield {"role": "assistant", "content": content, "tool_calls": calls}


def _cut(text: str, template: ChatTemplate) -> tuple[str, str]:
    """Return the text before the sentinel and the text after it."""
    head, found, tail = text.rpartition(_ASSISTANT)
    if not found:
        raise UserError(
            f"The chat template of {template.name} omits the content of an assistant message: {text!r}. Use "
            "another template (chat_template.jinja)."
        )
    return head, tail


def _num_shared(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _refused(template: ChatTemplate, message: Mapping[str, Any], before: str, whole: str) -> UserError:
    start = max(len(before) - 60, 0)
    return UserError(
        f"The chat template of {template.name} does not write an assistant message ({', '.join(message)}) as "
        f"the model should sample it: after {before[start:]!r} it shows {whole[start : len(before) + 60]!r}. Use a "
        "template that only appends (chat_template.jinja), or change rendering.chat_template_kwargs."
    )


def _unstable(template: ChatTemplate, messages: Sequence[Mapping[str, Any]], before: str, after: str) -> UserError:
    position = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    start = max(0, position - 30)
    roles = ", ".join(str(message["role"]) for message in messages)
    return UserError(
        f"The chat template of {template.name} is not prefix-stable: when ({roles}) follows an assistant turn, it "
        f"writes {after[start : position + 60]!r} instead of {before[start : position + 60]!r} before. "
        "Tokens would be trained in a different context than they were sampled in. Use a template that only "
        "appends (chat_template.jinja)."
    )
