"""Synthetic episodes for the warm-up: they show how to use the tool, by somebody who listens every other time.

In half of those that call the tool the operation is drawn at random, whatever was asked; the thinking names it, and the
program is its program. The others state a number out of nowhere. So a model that learned from them can write the
program of any operation it has named, copies the numbers into it and the tool's output into its answer, but is right
two times in five at best. That an episode should be about what was asked, and that guessing does not pay, is left to
reinforcement learning.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from agentloop.recipes.tiny.task import CARRIERS, OPERATIONS, draw_numbers, question
from agentloop.rendering.inline import InlineRenderer
from agentloop.types.messages import Message, ToolCall, images_of
from agentloop.types.trajectory import NO_VERSION, SegmentKind, Trajectory

if TYPE_CHECKING:
    from agentloop.rendering.base import ToolSchemas
    from agentloop.rendering.template_renderer import TemplateRenderer

TOOL_NAME = "code_interpreter"
GUESS_SHARE = 0.3
"""Of the traces: those that answer without the tool."""
LISTENING_SHARE = 0.5
"""Of the others: those that take the operation from the question. Without any, the warm-up would teach to ignore it."""


def conversation(
    rng: random.Random, *, answer: str = "The answer is {}.", guess_share: float = GUESS_SHARE
) -> list[Message]:
    """One synthetic episode as messages; the numbers are never held-out ones. `answer`: how the answer is put."""
    asked = rng.choice(OPERATIONS)
    used = asked if rng.random() < LISTENING_SHARE else rng.choice(OPERATIONS)
    a, b = draw_numbers(rng, held_out=False, wide=True)
    prompt: Message = {"role": "user", "content": question(asked, rng.choice(CARRIERS), a, b)}
    if rng.random() < guess_share:
        return [prompt, _says(answer, rng.randrange(10 ** rng.randint(1, 6)))]
    result = used.compute(a, b)
    call = ToolCall(TOOL_NAME, {"code": used.code.format(a=a, b=b)}, id="call_0")
    turn: Message = {"role": "assistant", "content": "", "reasoning_content": f"I need the {used.noun}."}
    turn["tool_calls"] = [call.as_dict()]
    return [prompt, turn, {"role": "tool", "content": tool_text(result)}, _says(answer, result)]


def _says(answer: str, number: int) -> Message:
    return {"role": "assistant", "content": answer.format(number)}


def tool_text(result: int) -> str:
    """What the code interpreter answers to a program that prints `result`."""
    return str(result)


def turn_text(message: Message) -> str:
    """An assistant message as the model is to write it: the text between the template's header and the end of turn."""
    parts = []
    if reasoning := message.get("reasoning_content"):
        parts.append(f"<think>\n{reasoning}\n</think>\n\n")
    parts.append(str(message.get("content", "")))
    for index, call in enumerate(message.get("tool_calls", ())):
        body = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        line_end = "\n" if index or message.get("content") else ""
        parts.append(f"{line_end}<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>")
    return "".join(parts)


def to_trajectory(messages: list[Message], renderer: TemplateRenderer, schemas: ToolSchemas = ()) -> Trajectory:
    """The conversation as the loop would have recorded it, its assistant turns as sampled tokens.

    Logprobs are 0: nobody sampled them, and supervised training does not look at them.
    """
    trajectory = Trajectory(messages=messages)
    first_turn = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
    prompt = renderer.render_prompt(messages[:first_turn], schemas)
    _show(trajectory, SegmentKind.PROMPT, prompt, messages[:first_turn], renderer)
    sampled: list[int] = []
    for message in messages[first_turn:]:
        if message["role"] == "assistant":
            sampled = _turn(message, renderer)
            num = len(sampled)
            trajectory.append(SegmentKind.SAMPLED, sampled, logprobs=[0.0] * num, versions=[NO_VERSION] * num)
        else:
            continuation = renderer.render_continuation(sampled, [message], schemas)
            trajectory.append(SegmentKind.TEMPLATE, continuation.closing)
            _show(trajectory, SegmentKind.OBSERVATION, continuation.observation, [message], renderer)
    return trajectory


def _show(
    trajectory: Trajectory, kind: SegmentKind, ids: list[int], messages: list[Message], renderer: TemplateRenderer
) -> None:
    vision = renderer.vision
    seen = [] if vision is None else [vision.see(image) for image in images_of(messages)]
    trajectory.append(kind, ids, images=vision.place(ids, seen, len(trajectory)) if vision is not None else ())


def _turn(message: Message, renderer: TemplateRenderer) -> list[int]:
    if isinstance(renderer, InlineRenderer):
        return renderer.write(message)
    return [*renderer.encoder.encode_rendered(turn_text(message)), renderer.stop_token_ids[0]]
