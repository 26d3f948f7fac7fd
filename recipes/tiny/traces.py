"""Synthetic episodes for the warm-up, which show how to use the tool but often ignore the question.

Some episodes guess a number without the tool. In half of the others the operation is random: the thinking names it, and
the program computes it. A model trained on them can write the program of any operation that it names, and copies the
numbers and the output, but is correct at most two times in five. Reinforcement learning must teach it to answer the
question and not to guess.
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
"""Share of the traces that answer without the tool."""
LISTENING_SHARE = 0.5
"""Share of the others whose operation is that of the question. Without any, the model would learn to ignore it."""


def conversation(
    rng: random.Random, *, answer: str = "The answer is {}.", guess_share: float = GUESS_SHARE
) -> list[Message]:
    """Draw the messages of an episode without held-out numbers. `answer` is the format of the answer."""
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
    """Return the answer of the code interpreter to a program that prints `result`."""
    return str(result)


def turn_text(message: Message) -> str:
    """Return the text of an assistant message between the template's header and the end of turn."""
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
    """Convert a conversation to the trajectory that the loop would record, with assistant turns as sampled tokens.

    Logprobs are 0: supervised training does not use them.
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
        return renderer.render_turn(message)
    return [*renderer.encoder.encode_rendered(turn_text(message)), renderer.stop_token_ids[0]]
