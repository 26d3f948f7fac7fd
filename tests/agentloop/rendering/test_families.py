"""Model families end to end: published chat templates (those that TRL ships) where there are some, else small ones with
the family's tokens.

What the template writes for a call is what a model of the family samples. So it must be read as that call, and the
stream of prompt, sampled turn and continuation must be the template's own text of the whole conversation.
"""

from __future__ import annotations

import asyncio
import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from agentloop.episodes.tool_calls import answer_calls
from agentloop.errors import UserError
from agentloop.gateway.dialects.chat import Chat
from agentloop.gateway.turns.completions import arguments_for_clients, calls_for_clients, text_for_clients
from agentloop.gateway.turns.deltas import CallDelta, Deltas
from agentloop.rendering import renderer_for
from agentloop.types.limits import Limits
from agentloop.types.messages import ToolCall
from tests.support.model_families import FAMILIES, QUESTION, TOOLS, call_of, renderer_of, template_of

NO_THOUGHT = r"<think>\s*</think>"
"""Templates differ in how they write it for past turns."""


def text_of(renderer, messages, *, generate=False):
    return renderer.template.render(messages, TOOLS, generate=generate)


def written_call(name, arguments, content=""):
    """Return the text that a model samples for this call, up to the token that ends the turn."""
    renderer, family = renderer_of(name), FAMILIES[name]
    turn = {"role": "assistant", "content": content, "tool_calls": [call_of(family, arguments)]}
    text = text_of(renderer, [QUESTION, turn])
    start = text.rindex(QUESTION["content"]) + len(QUESTION["content"])
    prompt = text_of(renderer, [QUESTION], generate=True)
    opening = prompt[prompt.rindex(QUESTION["content"]) + len(QUESTION["content"]) :]
    written = text[start:]
    if written.startswith(opening):
        sampled = written.removeprefix(opening)
        sampled = sampled if family.thinks else re.sub(r"^<think>\s*</think>\s*", "", sampled)
    else:  # the template writes past thinking differently from a new turn
        sampled = "</think>" + written.removeprefix(opening[: opening.index("<think>")]).removeprefix("<think></think>")
    end = "<|observation|>" if family.format == "glm" else ""
    return (sampled.rstrip("\n") if end == "" else sampled) + end


@pytest.mark.parametrize("name", FAMILIES)
def test_format_and_stop_tokens_match_the_family(name):
    renderer, family = renderer_of(name), FAMILIES[name]
    assert renderer.call_format.name == family.format
    eos = renderer.tokenizer.eos_token
    stops = tuple(renderer.decode([token]) for token in renderer.stop_token_ids)
    assert stops == (family.stops if eos in family.stops else (*family.stops, eos))
    assert renderer.starts_in_thinking is family.thinks


MARKUP = [
    "\n",
    "'",
    '"',
    "\\",
    "{",
    "}",
    "], [",
    "<",
    "</x>",
    "{{ a }}",
    "```",
    "\\n",
    "\\u00e9",
    "&amp;",
    "null",
    "é漢🙂",
    "\u2028",
]
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12) | st.lists(
    st.sampled_from(MARKUP), max_size=6
).map("".join)
keys = st.sampled_from(["a", "New York", "x-y", "é", ""])
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(keys, inside, max_size=3),
    max_leaves=6,
)
arguments = st.fixed_dictionaries(
    {"city": texts},
    optional={
        "days": st.integers(-(10**20), 10**20),
        "exact": st.booleans(),
        "units": st.lists(texts, max_size=3),
        "options": st.dictionaries(keys, anything, max_size=3),
    },
)


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_call_written_by_the_template_is_parsed_back(name, data):
    values = data.draw(arguments)
    renderer, family = renderer_of(name), FAMILIES[name]
    parsed = renderer.parse(renderer.encoder.encode_rendered(written_call(name, values)), tools=TOOLS)
    assert [type(call) for call in parsed.calls] == [ToolCall], parsed
    assert (parsed.calls[0].name, parsed.calls[0].arguments) == ("get_weather", values)
    if family.format == "kimi":
        assert parsed.calls[0].id == family.call_id
    assert parsed.content == ""


@pytest.mark.parametrize("name", FAMILIES)
def test_turn_truncated_by_length_has_no_calls(name):
    renderer = renderer_of(name)
    sampled = renderer.encoder.encode_rendered(written_call(name, {"city": "Oslo"}))
    assert renderer.parse(sampled[:-1], complete=False, tools=TOOLS).calls == ()


def stream(name, sampled, answer):
    renderer = renderer_of(name)
    prompt = renderer.render_prompt([QUESTION], TOOLS if name != "deepseekv3" else ())  # it shows none
    following = renderer.render_continuation(sampled, [answer], TOOLS)
    return renderer.decode([*prompt, *sampled, *following.closing, *following.observation])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("result", ["sunny", "two\nlines", '{"sky": "blue"}'])
def test_stream_of_a_call_and_its_result_matches_the_template(name, result):
    renderer, family = renderer_of(name), FAMILIES[name]
    written = written_call(name, {"city": "Oslo"})
    call = call_of(family, {"city": "Oslo"})
    answer = {"role": "tool", "content": result, "name": "get_weather", "tool_call_id": call["id"]}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    whole = text_of(renderer, [QUESTION, turn, answer], generate=True)
    for _ in range(3):  # rendered by the template, then spliced
        text = stream(name, renderer.encoder.encode_rendered(written), answer)
        assert re.sub(NO_THOUGHT, "", text) == re.sub(NO_THOUGHT, "", whole)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "mistral"])
def test_stream_of_an_answer_and_the_next_question_matches_the_template(name):
    renderer, family = renderer_of(name), FAMILIES[name]
    said = "<|channel|>final<|message|>Yes." if family.format == "harmony" else "Yes."
    said = f"\n<think></think>\n{said}" if family.format == "glm" else "</think>" * family.thinks + said
    sampled = renderer.encoder.encode_rendered(said + family.stops[0])
    again = {"role": "user", "content": "Sure?"}
    turn = {"role": "assistant", "content": "Yes."}
    whole = text_of(renderer, [QUESTION, turn, again], generate=True)
    text = stream(name, sampled, again)
    if family.past_end:
        text = text.replace(said + family.stops[0], said + family.past_end)
    assert re.sub(NO_THOUGHT + r"\s*", "", text) == re.sub(NO_THOUGHT + r"\s*", "", whole)


def test_mistral_rejects_a_second_question_with_tools():
    renderer = renderer_of("mistral")
    with pytest.raises(UserError, match="not prefix-stable"):
        renderer.render_continuation([renderer.stop_token_ids[0]], [QUESTION], TOOLS)
    assert renderer.render_continuation([renderer.stop_token_ids[0]], [QUESTION]).observation


def test_glm_turn_ends_with_the_opening_token_of_the_next():
    renderer = renderer_of("glm4moe")
    user, observation, _ = renderer.stop_token_ids
    result = [{"role": "tool", "content": "sunny", "name": "get_weather", "tool_call_id": "1"}]
    shown = "\n<tool_response>\nsunny\n</tool_response><|assistant|>"
    assert renderer.decode(renderer.render_continuation([observation], result, TOOLS).observation) == shown
    # If the turn ended differently or was truncated, the stream adds the token.
    for sampled in ([user], [], [1]):
        following = renderer.render_continuation(sampled, result, TOOLS)
        assert (following.closing, renderer.decode(following.observation)) == ([], f"<|observation|>{shown}")


def test_gemma_call_ends_with_the_opening_token_of_its_result():
    renderer = renderer_of("gemma4_v5")
    _turn, response, _eos = renderer.stop_token_ids
    result = [{"role": "tool", "content": "sunny", "name": "get_weather", "tool_call_id": "1"}]
    shown = 'response:get_weather{value:<|"|>sunny<|"|>}<tool_response|>'
    assert renderer.decode(renderer.render_continuation([response], result, TOOLS).observation) == shown
    following = renderer.render_continuation([1], result, TOOLS)
    assert (following.closing, renderer.decode(following.observation)) == ([], f"<|tool_response>{shown}")
    following = renderer.render_continuation([1], [QUESTION], TOOLS)
    assert renderer.decode(following.closing) == "<turn|>\n"


def test_several_results_of_one_turn_match_the_template():
    renderer = renderer_of("glm4moe")
    results = [{"role": "tool", "content": text, "name": "get_weather", "tool_call_id": text} for text in "ab"]
    following = renderer.render_continuation([renderer.stop_token_ids[1]], results, TOOLS)
    assert renderer.decode(following.observation) == (
        "\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|assistant|>"
    )


def test_template_that_hides_results_is_rejected():
    backend = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    backend.add_special_tokens(["<|user|>", "<|assistant|>", "<|end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    tokenizer.chat_template = template_of("phi3")
    renderer = renderer_for(tokenizer)
    with pytest.raises(UserError, match="does not show tool results"):
        renderer.render_continuation([], [{"role": "tool", "content": "a"}])


@pytest.mark.parametrize(
    ("name", "written", "shown"),
    [
        (
            "gptoss",
            " to=functions.get_weather<|channel|>commentary json<|message|>{<|call|>",
            "functions.get_weather to=",
        ),
        ("gemma4_v5", "<|tool_call>call:get_weather{city:Oslo}<tool_call|><|tool_response>", "response:get_weather{"),
        ("gemma4_v5", "<|tool_call>get_weather()<tool_call|><|tool_response>", "response:unknown{"),
    ],
)
def test_malformed_call_result_names_the_called_function(name, written, shown):
    renderer = renderer_of(name)
    sampled = renderer.encoder.encode_rendered(written)
    (call,) = renderer.parse(sampled, tools=TOOLS).calls
    (message,) = asyncio.run(answer_calls([call], None, Limits(), math.inf, renderer)).messages
    assert shown in renderer.decode(renderer.render_continuation(sampled, [message], TOOLS).observation)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("content", ["", "Let {me} look:\n[x] <y>."])
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_turn_in_a_stream_is_the_whole_turn(name, content, is_broken):
    renderer = renderer_of(name)
    written = written_call(name, {"city": "the town by the sea", "units": ["C", "F"]}, content)
    sampled = renderer.encoder.encode_rendered(written[:-20] if is_broken else written)
    request = Chat().read(json.dumps({"messages": [QUESTION], "tools": list(TOOLS)}).encode())
    deltas = Deltas(request, renderer)
    parsed = renderer.parse_stream(sampled, "complete", tools=TOOLS, eager=request.eager)
    text, arguments = "", {}

    def take(parts):
        nonlocal text
        for part in parts:
            if isinstance(part, CallDelta):
                arguments[part.number] = arguments.get(part.number, "") + part.arguments
            elif part.kind == "content":
                text += part.text

    for token in sampled:
        take(asyncio.run(deltas.more([token])))
    assert parsed.content.startswith(text)
    take(deltas.rest(parsed))
    assert text == text_for_clients(parsed)
    assert list(arguments.values()) == [arguments_for_clients(call) for call in calls_for_clients(parsed)]
    if not is_broken:
        assert parsed == renderer.parse(sampled, tools=TOOLS)
