"""Invariants 1 to 3 over random conversations, templates and tokenizers."""

from __future__ import annotations

import re
import unicodedata
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.types.trajectory import SegmentKind, Trajectory
from tests.agentloop.rendering.conftest import SPECIAL, TAGS

TOOLS = ({"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}},)
KINDS = ("split", "gpt2", "no_words", "pieces")
STABLE = ("chatml", "think", "coder", "bracket", "trimming")
VERBATIM = ("chatml", "think", "coder", "bracket")


def is_plain(text):
    """Return whether no added token is in the text. Hypothesis also draws strings that stand in the code."""
    return not any(token in text for token in (*SPECIAL, *TAGS))


characters = st.characters(exclude_categories=("Cs", "Co", "Cn"))
plain_text = st.text(characters, max_size=20).filter(is_plain) | st.sampled_from(
    ["", " ", "\n", "\n\n", "  two  ", "a\r\n", '"q"', "{{ x }}", "42", "def f():\n    return 1\n", "é漢🙂"]
)
control = st.sampled_from(
    ["<|im_end|>", "<tool_call>", "</tool_response>", "<think>", "</think>", "<|im_start|>system\n", "</s>", "[INST]"]
)
hostile_text = st.lists(plain_text | control, max_size=4).map("".join)
turn_text = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="<[|"), max_size=12)


def results(contents):
    return [{"role": "tool", "content": text, "tool_call_id": f"call_{i}"} for i, text in enumerate(contents)]


def answers(contents_strategy):
    """Return the messages that answer a turn: tool results or a user message."""
    one = contents_strategy.map(lambda text: [{"role": "user", "content": text}])
    return one | st.lists(contents_strategy, min_size=1, max_size=3).map(results)


def run_episode(renderer, prompt, turns, tools=TOOLS, complete=True):
    """The stream of an episode whose sampled turns are given as texts, one id a character: no tokenizer writes so."""
    trajectory = Trajectory()
    trajectory.append(SegmentKind.PROMPT, renderer.render_prompt(prompt, tools))
    for version, (text, messages) in enumerate(turns):
        sampled = [token for character in text for token in renderer.encode(character)]
        sampled += [renderer.stop_token_ids[0]] if complete else []
        logprobs = [-0.5 * (i + 1) for i in range(len(sampled))]
        trajectory.append(SegmentKind.SAMPLED, sampled, logprobs=logprobs, versions=[version] * len(sampled))
        following = renderer.render_continuation(sampled, messages, tools)
        trajectory.append(SegmentKind.TEMPLATE, following.closing)
        trajectory.append(SegmentKind.OBSERVATION, following.observation)
    return trajectory


def conversation(prompt, turns):
    return [*prompt, *(m for text, new in turns for m in [{"role": "assistant", "content": text}, *new])]


def full_text(renderer, messages, tools=TOOLS, generate=True, **options):
    return renderer.tokenizer.apply_chat_template(
        messages, tools=list(tools), tokenize=False, add_generation_prompt=generate, **options
    )


prompts = st.lists(plain_text, min_size=1, max_size=1).map(lambda t: [{"role": "user", "content": t[0]}])


@pytest.mark.parametrize("template", STABLE)
@given(kind=st.sampled_from(KINDS), data=st.data())
@settings(max_examples=30, deadline=None)
def test_sampled_ids_are_kept_and_only_they_carry_loss(make_renderer, template, kind, data):
    renderer = make_renderer(template, kind)
    text = hostile_text
    tools = TOOLS if template not in ("bracket", "trimming") else ()
    prompt = [{"role": "user", "content": data.draw(text)}]
    turn = st.tuples(turn_text, answers(text))
    if template == "trimming":  # the template supports one call per turn
        turn = st.tuples(turn_text, text.map(lambda content: results([content])))
    turns = data.draw(st.lists(turn, min_size=1, max_size=4))
    trajectory = run_episode(renderer, prompt, turns, tools)

    stop = renderer.stop_token_ids[0]
    sampled = [[t for c in said for t in renderer.encode(c)] + [stop] for said, _ in turns]
    kept = [trajectory.token_ids[s.start : s.end].tolist() for s in trajectory.sampled_segments()]
    assert kept == sampled
    flat = [token for turn_ids in sampled for token in turn_ids]
    assert trajectory.token_ids[trajectory.loss_mask].tolist() == flat
    assert not trajectory.logprobs[~trajectory.loss_mask].any()
    assert (trajectory.versions[~trajectory.loss_mask] == -1).all()
    assert trajectory.versions[trajectory.loss_mask].tolist() == [v for v, ids in enumerate(sampled) for _ in ids]


@pytest.mark.parametrize("template", VERBATIM)
@given(kind=st.sampled_from(("split", "gpt2", "no_words")), data=st.data())
@settings(max_examples=30, deadline=None)
def test_stream_matches_the_template(make_renderer, template, kind, data):
    """Decoded, the stream is what the template writes for the whole conversation; each observation has the ids that
    the tokenizer itself gives that part of the text."""
    renderer = make_renderer(template, kind)
    tools = TOOLS if template != "bracket" else ()
    prompt = data.draw(prompts)
    answer = plain_text.map(lambda text: results([text])) if template == "think" else answers(plain_text)
    turns = data.draw(st.lists(st.tuples(turn_text, answer), min_size=1, max_size=3))
    trajectory = run_episode(renderer, prompt, turns, tools)
    whole = full_text(renderer, conversation(prompt, turns), tools)
    stream = renderer.decode(trajectory.ids)
    if template == "bracket":  # the template writes a space before assistant text, which a sampled turn may lack
        whole = re.sub(r"(\[/INST\]|\[/RESULT\]) ", r"\1", whole)
        stream = re.sub(r"(\[/INST\]|\[/RESULT\]) ", r"\1", stream)
    if kind == "split":  # its normalizer composes characters
        whole = unicodedata.normalize("NFC", whole)
    assert stream == whole

    backend = renderer.tokenizer.backend_tokenizer
    opening = backend.encode(full_text(renderer, prompt, tools), add_special_tokens=False).ids
    assert list(trajectory.ids[: len(opening)]) == opening
    observations = [s for s in trajectory.segments if s.kind is SegmentKind.OBSERVATION]
    for number, segment in enumerate(observations):
        so_far = conversation(prompt, turns[: number + 1])
        ids = backend.encode(full_text(renderer, so_far, tools), add_special_tokens=False).ids
        assert list(trajectory.ids[segment.start : segment.end]) == ids[len(ids) - (segment.end - segment.start) :]


@pytest.mark.parametrize("template", STABLE)
@given(kind=st.sampled_from(KINDS), content=hostile_text)
@settings(max_examples=30, deadline=None)
def test_tool_result_cannot_produce_control_tokens(make_renderer, template, kind, content):
    renderer = make_renderer(template, kind)
    added = set(renderer.encoder.added.values())
    sampled = [renderer.stop_token_ids[0]]

    def controls(text):
        ids = renderer.render_continuation(sampled, results([text])).observation
        return [token for token in ids if token in added]

    assert controls(content) == controls("harmless")
    question = [{"role": "user", "content": content}]
    asked = [token for token in renderer.render_prompt(question) if token in added]
    assert asked == [t for t in renderer.render_prompt([{"role": "user", "content": "harmless"}]) if t in added]


@pytest.mark.parametrize("template", STABLE)
@given(kind=st.sampled_from(KINDS), contents=st.lists(hostile_text, min_size=1, max_size=3))
@settings(max_examples=30, deadline=None)
def test_splicing_matches_rendering(make_renderer, template, kind, contents):
    """The splice and the template give the same ids for any contents."""
    renderer = make_renderer(template, kind)
    messages = results(contents[:1] if template == "trimming" else contents)
    sampled = [renderer.stop_token_ids[0]]
    rendered = renderer.encoder.encode_rendered(renderer.continuation_text(messages, ()))
    for _ in range(2):  # rendered, then spliced
        following = renderer.render_continuation(sampled, messages)
        assert following.closing + following.observation == rendered
    with patch.object(renderer.template, "render", side_effect=AssertionError("a splice renders no template")):
        following = renderer.render_continuation(sampled, messages)
    assert following.closing + following.observation == rendered


@given(contents=st.lists(hostile_text, min_size=2, max_size=2))
@settings(max_examples=40, deadline=None)
def test_continuation_does_not_depend_on_the_sampled_turn(make_renderer, contents):
    renderer = make_renderer("chatml")
    stop = renderer.stop_token_ids[0]
    one = renderer.render_continuation([*renderer.encode(contents[0]), stop], results(contents[1:]))
    other = renderer.render_continuation([stop], results(contents[1:]))
    assert one == other
    cut = renderer.render_continuation(renderer.encode(contents[0]), results(contents[1:]))
    assert cut.closing == [stop, *one.closing]
    assert cut.observation == one.observation
