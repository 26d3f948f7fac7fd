"""Calls inside thinking are not calls."""

import pytest

from agentloop.rendering.formats import FORMATS, call_format
from agentloop.rendering.parsing import TurnParser
from agentloop.types.messages import InvalidCall, ToolCall
from tests.agentloop.rendering.formats.written import WRITTEN

HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": "1"}}\n</tool_call>'
CODER = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
CASES = [("hermes", HERMES), ("qwen3_coder", CODER)]


def turn(name, text, *, inside=False, complete=True):
    return TurnParser(call_format(name), starts_in_thinking=inside).parse(text, complete=complete)


@pytest.mark.parametrize(("name", "call"), CASES)
def test_only_calls_after_thinking_count(name, call):
    parsed = turn(name, f"<think>\nmaybe {call}\n</think>\n\nNow:\n{call}")
    assert parsed.calls == (ToolCall("f", {"a": "1"}, "call_0"),)
    assert parsed.reasoning == f"maybe {call}"
    assert parsed.content == "Now:"


@pytest.mark.parametrize(("name", "call"), CASES)
def test_unclosed_thinking_of_a_cut_turn_is_all_reasoning(name, call):
    parsed = turn(name, f"<think>{call} {call}", complete=False)
    assert (parsed.calls, parsed.content, parsed.reasoning) == ((), "", f"{call} {call}")


@pytest.mark.parametrize("name", FORMATS)
def test_call_in_unclosed_thinking_gets_feedback(name):
    """For every format with calls after thinking; harmony closes its channels."""
    call_format = FORMATS.get(name)
    call = WRITTEN.get(name)
    if call is None:
        assert call_format.read_turn is not None
        return
    opening, closing = call_format.thinking
    parsed = turn(name, f"{opening}Let me see. {call} {call}")
    (refused,) = parsed.calls
    assert isinstance(refused, InvalidCall)
    assert f"Close the thinking with {closing} before a call." in refused.error
    assert refused.name == "f"
    assert parsed.reasoning == f"Let me see. {call} {call}"
    executed = TurnParser(call_format, calls_in_thinking="execute").parse(f"{opening}Let me see. {call}")
    assert [type(each) for each in executed.calls] == [ToolCall]
    assert (executed.reasoning, executed.content) == ("Let me see.", "")


def test_thinking_that_only_mentions_the_tag_is_closed_feedback_as_well():
    assert turn("hermes", "<think>no call here").calls == ()
    (refused,) = turn("hermes", "<think>I could use <tool_call>").calls
    assert "Close the thinking" in refused.error


def test_call_in_the_analysis_of_harmony_gets_feedback():
    written = "<|channel|>analysis<|message|>Let me see. <|channel|>commentary to=functions.f <|message|>{}<|call|>"
    (refused,) = turn("harmony", written).calls
    assert "Close the thinking with <|end|> before a call." in refused.error


@pytest.mark.parametrize(("name", "call"), CASES)
def test_tag_may_be_opened_by_the_generation_prompt(name, call):
    parsed = turn(name, f"draft {call}</think>{call}", inside=True)
    assert (len(parsed.calls), parsed.content, parsed.reasoning) == (1, "", f"draft {call}")
    assert isinstance(turn(name, f"draft {call}", inside=True).calls[0], InvalidCall)
    assert turn(name, f"draft {call}", inside=True, complete=False).calls == ()
    assert turn(name, "", inside=True).reasoning == ""


@pytest.mark.parametrize(("name", "call"), CASES)
def test_closing_tag_alone_ends_thinking_from_the_turn_start(name, call):
    parsed = turn(name, f"draft {call}</think>{call} end")
    assert (len(parsed.calls), parsed.content, parsed.reasoning) == (1, "end", f"draft {call}")


@pytest.mark.parametrize(("name", "call"), CASES)
def test_second_thinking_block_is_handled(name, call):
    parsed = turn(name, f"<think>one</think>a<think>two {call}</think>b</think>c")
    assert (parsed.calls, parsed.content, parsed.reasoning) == ((), "abc", "one\ntwo " + call)


def test_missing_thinking_is_none_and_empty_thinking_is_empty():
    assert turn("hermes", "hello").reasoning is None
    assert turn("hermes", "<think>\n\n</think>\n\nhello").reasoning == ""
    assert turn("hermes", "<think>\n\n</think>\n\nhello").content == "hello"


def test_without_a_format_everything_is_content():
    parsed = TurnParser(None).parse(f"<think>x</think>{HERMES}")
    assert (parsed.calls, parsed.content, parsed.reasoning) == ((), HERMES, "x")
