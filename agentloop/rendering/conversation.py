"""Convert a finished conversation to the trajectory that the agent loop would have recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentloop.rendering.formats.base import ToolSchemas
from agentloop.types.messages import Message, images_of
from agentloop.types.trajectory import NO_VERSION, SegmentKind, Trajectory

if TYPE_CHECKING:
    from agentloop.rendering.template_renderer import TemplateRenderer

_THINKING = ("reasoning_content", "reasoning", "thinking")
"""Keys under which data sets store the thinking of a turn. Each template reads one of them, or none."""


def conversation_trajectory(
    messages: Sequence[Message], renderer: TemplateRenderer, tools: ToolSchemas = (), *, context: int = 0
) -> Trajectory:
    """Return the token stream of a conversation, with its assistant turns as sampled segments.

    An episode in which the model writes the same turns has the same tokens, so supervised training and rollouts agree.
    Everything except assistant turns is context; so are turns among the first `context` messages and turns with the key
    `weight` 0 (OpenAI's fine-tuning format). The stream ends with the last turn; later messages are omitted.
    Log-probabilities are 0, and policy versions are `NO_VERSION`.

    Raises `ValueError` if an assistant turn does not answer another message or has an image, or if the chat template
    omits its thinking, and `UserError` if the template rejects the conversation.
    """
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or turns[0] == 0:
        raise ValueError("the conversation needs at least one message and an assistant turn that answers it")
    trajectory = Trajectory(messages=list(messages[: turns[-1] + 1]))
    asked = messages[: turns[0]]
    _show(trajectory, SegmentKind.PROMPT, renderer.render_prompt(asked, tools), asked, renderer)
    for turn, following in zip(turns, [*turns[1:], None], strict=True):
        if images_of([messages[turn]]):
            raise ValueError(
                f"message {turn + 1} is an assistant turn with an image, which the model cannot write: move the image, "
                "or its '<image>', to another message"
            )
        message = {key: value for key, value in messages[turn].items() if key != "weight"}
        ids = renderer.render_turn(message, tools)  # type: ignore[arg-type]
        if turn >= context and messages[turn].get("weight", 1) != 0:
            _check_thinking(message, ids, renderer, turn)
            size = len(ids)
            trajectory.append(SegmentKind.SAMPLED, ids, logprobs=[0.0] * size, versions=[NO_VERSION] * size)
        else:
            trajectory.append(SegmentKind.TEMPLATE, ids)
        if following is None:
            return trajectory
        answers = messages[turn + 1 : following]
        if not answers:
            raise ValueError(
                f"messages {turn + 1} and {following + 1} are both assistant turns: put a message between them"
            )
        continuation = renderer.render_continuation(ids, answers, tools)
        trajectory.append(SegmentKind.TEMPLATE, continuation.closing)
        _show(trajectory, SegmentKind.OBSERVATION, continuation.observation, answers, renderer)
    return trajectory


def _check_thinking(message: Mapping[str, Any], ids: list[int], renderer: TemplateRenderer, index: int) -> None:
    """Raise `ValueError` if the ids of a trained turn lack the thinking of its message."""
    for key in _THINKING:
        thinking = message.get(key)
        if not isinstance(thinking, str):
            continue
        as_decoded = renderer.decode(renderer.encode(thinking))  # tokenizers may normalize text
        if as_decoded.strip() not in renderer.decode(ids):
            raise ValueError(
                f"message {index + 1} has thinking in {key!r}, which the chat template does not write, so it would not "
                "be trained. Put it into 'content' in the tags that the model writes, rename the key to the one that "
                "the template reads, set rendering.chat_template to a template that shows thinking, or remove the key"
            )


def _show(
    trajectory: Trajectory,
    kind: SegmentKind,
    ids: list[int],
    messages: Sequence[Message],
    renderer: TemplateRenderer,
) -> None:
    vision = renderer.vision
    seen = [] if vision is None else [vision.see(image) for image in images_of(messages)]
    trajectory.append(kind, ids, images=vision.place(ids, seen, len(trajectory)) if vision is not None else ())
