"""Turns that are parsed while they are sampled: what a stream has sent is the beginning of the turn."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.rendering.formats import FORMATS, call_format
from agentloop.rendering.parsing import TurnParser
from agentloop.types.messages import InvalidCall, ToolCall, UnfinishedCall
from tests.agentloop.rendering.formats.streamed import AT_THE_END, CALLS, EAGER, TOOLS, dumps, parts_of

ARGUMENTS = {"text": 'é "x"\n</a>{', "number": 1.5, "list": [1, {"a": "b"}]}


def parse(name, text, progress="sampling", **options):
    return TurnParser(call_format(name)).parse_stream(text, progress, tools=TOOLS, **{"eager": EAGER, **options})


def test_all_formats_are_tried():
    assert set(CALLS) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_grow_with_the_text(name):
    text = CALLS[name]("run", ARGUMENTS)
    whole = dumps(ARGUMENTS)
    before = ""
    for end in range(len(text)):
        for call in parse(name, text[:end]).calls:
            found = call.arguments if isinstance(call, UnfinishedCall) else dumps(call.arguments)
            assert (call.name, found[: len(before)]) == ("run", before)
            assert whole.startswith(found)
            before = found
    (call,) = parse(name, text, "complete").calls
    assert call.arguments == ARGUMENTS
    assert bool(before) == (name not in AT_THE_END)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - AT_THE_END))
def test_a_text_is_sent_as_it_is_sampled(name):
    text = CALLS[name]("run", {"text": "first second"}).partition("second")[0]
    (call,) = parse(name, text).calls
    assert (call.name, call.arguments) == ("run", '{"text": "first ')
    assert parse(name, text, eager=()).calls == ()


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None)
@given(st.data())
def test_more_text_takes_nothing_back(name, data):
    """The beginning of any turn is the beginning of what the whole turn is, however it ends."""
    text = "".join(data.draw(st.lists(parts_of(name), max_size=8)))
    eager = data.draw(st.sampled_from([EAGER, ()]))
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=6)))
    progress = data.draw(st.sampled_from(["cut", "complete"]))
    reads_calls = data.draw(st.booleans())
    options = {"eager": eager, "reads_calls": reads_calls}
    turns = [parse(name, text[:end], **options) for end in ends] + [parse(name, text, progress, **options)]
    for earlier, later in itertools.pairwise(turns):
        assert later.content.startswith(earlier.content)
        assert (later.reasoning or "").startswith(earlier.reasoning or "")
        calls = [call for call in later.calls if type(call) is not InvalidCall]
        for index, call in enumerate(call for call in earlier.calls if type(call) is not InvalidCall):
            same = calls[index]
            assert (same.id, same.name) == (call.id, call.name)
            if isinstance(call, ToolCall):
                assert same == call
            elif isinstance(same, ToolCall):
                assert dumps(same.arguments).startswith(call.arguments)
            else:
                assert same.arguments.startswith(call.arguments)


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None)
@given(st.data())
def test_a_streamed_turn_is_the_parsed_turn(name, data):
    """If no tool is eager, nothing is left open, and no think tag is closed that was never opened."""
    opening, closing = call_format(name).thinking
    thought = data.draw(st.sampled_from(["", f"{opening}hm{closing}"]))
    text = thought + "".join(data.draw(st.lists(parts_of(name), max_size=8))).replace(closing, "")
    parser = TurnParser(call_format(name))
    assert parse(name, text, "complete", eager=()) == parser.parse(text, tools=TOOLS)
    streamed, cut = parse(name, text, "cut", eager=()), parser.parse(text, tools=TOOLS, complete=False)
    if not streamed.calls:
        assert streamed == cut


@pytest.mark.parametrize("name", sorted(set(FORMATS) - AT_THE_END))
@pytest.mark.parametrize("progress", ["cut", "complete"])
def test_a_malformed_call_that_was_begun_is_never_a_whole_object(name, progress):
    text = CALLS[name]("run", {"text": "first second"}).partition("second")[0]
    (call,) = parse(name, text, progress).calls
    assert isinstance(call, UnfinishedCall)
    assert (call.name, call.arguments) == ("run", '{"text": "first ')
    assert call.error
    with pytest.raises(json.JSONDecodeError):
        json.loads(call.arguments)


def test_thinking_that_was_never_opened_stays_text():
    turn = parse("hermes", "so </think> it is 5", "complete")
    assert (turn.content, turn.reasoning) == ("so  it is 5", None)
