"""Find parts of a model's text, for rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop.types.messages import Message, text_of

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

_FENCE = "```"


def turn_text(message: Message) -> str:
    """Return the text of a turn, with the thinking that the parser extracted put back into its tags."""
    content = text_of(message.get("content", ""))
    reasoning = message.get("reasoning_content")
    return content if reasoning is None else f"<think>\n{reasoning}\n</think>\n{content}"


def assistant_turns(trajectory: Trajectory) -> list[Message]:
    """Return the model's turns, without examples in the prompt."""
    turns = [message for message in trajectory.messages if message["role"] == "assistant"]
    num_sampled = len(trajectory.turn_rewards)
    return turns[-num_sampled:] if num_sampled else turns


def inside(text: str, tag: str) -> list[str]:
    """Return the stripped texts between each `<tag>` and the next `</tag>`, in order."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    found = []
    place = 0
    # A regular expression takes quadratic time with many opening tags and no closing tag.
    while (start := text.find(opening, place)) >= 0 and (end := text.find(closing, start)) >= 0:
        found.append(text[start + len(opening) : end].strip())
        place = end + len(closing)
    return found


def last_fence(text: str, *languages: str) -> str | None:
    """Return the content of the last closed Markdown fence in one of the languages, else of the last unmarked one."""
    found: dict[bool, str] = {}
    language: str | None = None
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if language is None:
            if bare.startswith(_FENCE):
                language, lines = bare.removeprefix(_FENCE).strip().partition(" ")[0].lower(), []
        elif bare == _FENCE:
            if not language or language in languages:
                found[bool(language)] = "".join(lines)
            language = None
        else:
            lines.append(line)
    return found.get(True, found.get(False))


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`, or None if there is none or its braces are not balanced."""
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth = 0
    opening = start + len(r"\boxed")
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[opening + 1 : place]
    return None
