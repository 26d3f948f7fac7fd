"""Finished conversations as token streams: what is trained, and that the stream is the template's own text."""

import re

import pytest

from agentloop.errors import UserError
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from agentloop.rendering.conversation import conversation_trajectory
from agentloop.types.messages import ToolCall
from agentloop.types.trajectory import SegmentKind
from tests.support.model_families import FAMILIES, QUESTION, TOOLS, call_of, renderer_of

NO_THOUGHT = r"<think>\s*</think>\s*"
"""Templates differ in how they write it for past turns."""


@pytest.fixture(scope="module")
def renderer():
    return renderer_for(build_tokenizer())


def conversation(family):
    call = call_of(family, {"city": "Oslo"})
    result = {"role": "tool", "content": "sunny", "name": "get_weather", "tool_call_id": call["id"]}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [QUESTION, turn, result, {"role": "assistant", "content": "It is sunny."}]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_stream_of_every_family_is_the_text_of_its_template(name):
    renderer, family = renderer_of(name), FAMILIES[name]
    messages = conversation(family)
    tools = TOOLS if name != "deepseekv3" else ()  # its template shows none
    trajectory = conversation_trajectory(messages, renderer, tools)

    turns = [list(trajectory.ids[each.start : each.end]) for each in trajectory.sampled_segments()]
    [call] = renderer.parse(turns[0], tools=TOOLS).calls
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments) == ("get_weather", {"city": "Oslo"})
    assert renderer.parse(turns[1], tools=TOOLS).content == "It is sunny."
    assert all(turn[-1] in renderer.stop_token_ids for turn in turns)

    whole = re.sub(NO_THOUGHT, "", renderer.encoder.escaping.show(renderer.template.render(messages, tools)))
    shown = re.sub(NO_THOUGHT, "", renderer.decode(trajectory.ids))
    if family.thinks:
        shown = shown.replace("<think>", "").replace("</think>", "")
        whole = whole.replace("<think>", "").replace("</think>", "")
    assert whole.split() == shown.split() or whole.startswith(shown[: shown.rindex("sunny.") + 6])


def test_assistant_turns_are_trained_and_nothing_else(renderer):
    messages = [
        {"role": "user", "content": "Compute."},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "Again."},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Thanks."},
    ]
    trajectory = conversation_trajectory(messages, renderer)
    assert renderer.decode(trajectory.token_ids[trajectory.loss_mask]) == "One.<|im_end|>Two.<|im_end|>"
    assert [segment.kind for segment in trajectory.segments] == [
        SegmentKind.PROMPT,
        SegmentKind.SAMPLED,
        SegmentKind.TEMPLATE,
        SegmentKind.OBSERVATION,
        SegmentKind.SAMPLED,
    ]
    assert renderer.decode(trajectory.ids) == renderer.template.render(messages[:4]).removesuffix("\n")

    messages[1]["weight"] = 0
    for context, given in (2, messages), (0, messages), (2, [{**message, "weight": 1} for message in messages]):
        last = conversation_trajectory(given, renderer, context=context)
        assert renderer.decode(last.token_ids[last.loss_mask]) == "Two.<|im_end|>"
        assert list(last.ids) == list(trajectory.ids)


def test_thinking_that_the_template_omits_is_refused():
    turn = {"role": "assistant", "content": "It is sunny.", "reasoning_content": "hm\n"}
    with pytest.raises(ValueError, match=r"message 2 has thinking in 'reasoning_content', which the chat template"):
        conversation_trajectory([QUESTION, turn], renderer_of("qwen2_5"))
    conversation_trajectory([QUESTION, turn | {"weight": 0}], renderer_of("qwen2_5"))

    renderer = renderer_of("qwen3")
    trajectory = conversation_trajectory([QUESTION, turn], renderer)
    assert "<think>\nhm\n</think>" in renderer.decode(trajectory.token_ids[trajectory.loss_mask])
    other_name = {"role": "assistant", "content": "Yes.", "thinking": "hm"}
    if "hm" in renderer.template.render([QUESTION, other_name]):  # newer versions of transformers read all three names
        trajectory = conversation_trajectory([QUESTION, other_name], renderer)
        assert "<think>\nhm\n</think>" in renderer.decode(trajectory.token_ids[trajectory.loss_mask])
    else:
        with pytest.raises(ValueError, match="'thinking'"):
            conversation_trajectory([QUESTION, other_name], renderer)


def test_an_answer_with_an_image_is_refused(renderer):
    image = {"type": "image", "image": object()}
    messages = [{"role": "user", "content": "Draw."}, {"role": "assistant", "content": [image]}]
    with pytest.raises(ValueError, match=r"message 2 is an assistant turn with an image"):
        conversation_trajectory(messages, renderer)


def test_control_tokens_in_a_conversation_stay_text(renderer):
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "a<|im_end|>b"}]
    trajectory = conversation_trajectory(messages, renderer)
    assert list(trajectory.ids).count(renderer.stop_token_ids[0]) == 2  # of the question and of the answer


@pytest.mark.parametrize(
    "roles",
    [[], ["user"], ["assistant"], ["user", "assistant", "assistant"]],
    ids=lambda roles: " ".join(roles) or "none",
)
def test_a_conversation_without_an_answer_to_a_message_is_refused(renderer, roles):
    messages = [{"role": role, "content": "a"} for role in roles]
    with pytest.raises(ValueError, match=r"conversation|a message between"):
        conversation_trajectory(messages, renderer)


def test_a_template_that_changes_its_prompt_is_refused():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\nAnswer: {% endif %}"
    )
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Ho."}]
    with pytest.raises(UserError, match="as the model should sample it"):
        conversation_trajectory(messages, renderer_for(tokenizer))
