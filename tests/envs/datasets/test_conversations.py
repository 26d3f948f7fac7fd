"""Rows with given answers, in the formats of TRL, OpenAI and ShareGPT."""

import json
from pathlib import Path

import pytest

from agentloop.envs.datasets.conversations import read_conversation, read_pair
from agentloop.errors import UserError

ASKED = {"role": "user", "content": "Sum?"}
SAID = {"role": "assistant", "content": "3"}
CALL = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def conversation(**columns):
    return read_conversation(columns, "rows, line 1", 0, Path())


def pair(**columns):
    return read_pair(columns, "rows, line 1", 0, Path())


def test_formats_of_conversations_are_read_alike():
    assert conversation(messages=[ASKED, SAID])["messages"] == [ASKED, SAID]
    assert conversation(messages=[ASKED, SAID], prompt="Sum?")["messages"] == [ASKED, SAID]  # no second conversation
    of_prompt = conversation(prompt="Sum?", completion="3")
    assert (of_prompt["messages"], of_prompt["context"]) == ([ASKED, SAID], 1)
    sharegpt = [{"from": "human", "value": "Sum?"}, {"from": "gpt", "value": "3"}]
    row = conversation(conversations=sharegpt, system="Add.")
    assert row["messages"] == [{"role": "system", "content": "Add."}, ASKED, SAID]
    assert (row["tools"], row["context"]) == (None, 1)


def test_calls_and_tools_of_every_format_are_objects():
    body = {"name": "add", "arguments": '{"a": 1}'}
    turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0", "type": "function", "function": body}],
    }
    result = {"role": "tool", "content": "3", "tool_call_id": "call_0"}
    row = conversation(messages=[ASKED, turn, result, SAID], tools=json.dumps([TOOL]))
    assert row["messages"][1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert row["tools"] == [TOOL]
    before = {"role": "assistant", "content": None, "function_call": body}
    row = conversation(messages=[ASKED, before, {**result, "role": "function"}, SAID], functions=[TOOL["function"]])
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert (row["messages"][1]["tool_calls"], row["tools"]) == ([CALL], [TOOL])
    as_text = {"role": "assistant", "content": "", "tool_calls": json.dumps(turn["tool_calls"])}
    assert conversation(messages=[ASKED, as_text, result, SAID])["messages"][1]["tool_calls"] == [CALL]
    shared = [{"from": "human", "value": "Sum?"}, {"from": "function_call", "value": json.dumps(body)}]
    assert conversation(conversations=shared)["messages"][1]["tool_calls"] == [CALL]


def test_null_is_an_argument_in_json_text_only():
    """Parquet gives each object the keys of all others."""

    def arguments(**message):
        (_, said) = conversation(messages=[ASKED, {"role": "assistant", **message}])["messages"]
        return said["tool_calls"][0]["function"]["arguments"]

    given, text = {"a": 1, "b": None}, '{"a": 1, "b": null}'
    assert arguments(tool_calls=[{"function": {"name": "add", "arguments": given}}]) == {"a": 1}
    assert arguments(function_call={"name": "add", "arguments": given}) == {"a": 1}
    assert arguments(tool_calls=[{"function": {"name": "add", "arguments": text}}]) == given
    assert arguments(tool_calls=json.dumps([{"function": {"name": "add", "arguments": given}}])) == given
    turns = [
        {"from": "human", "value": "Sum?"},
        {"from": "function_call", "value": json.dumps({"name": "add", "arguments": given})},
    ]
    (_, said) = conversation(conversations=turns)["messages"]
    assert said["tool_calls"][0]["function"]["arguments"] == given
    schema = {"name": "add", "parameters": {"type": "object", "properties": {"b": {"default": None}}}}
    found = {
        kind: conversation(messages=[ASKED, SAID], tools=tools)["tools"][0]["function"]["parameters"]["properties"]["b"]
        for kind, tools in {"object": [schema], "text": json.dumps([schema]), "texts": [json.dumps(schema)]}.items()
    }
    assert found == {"object": {}, "text": {"default": None}, "texts": {"default": None}}


def test_pairs_have_a_prompt_or_the_beginning_that_both_share():
    given = pair(prompt=[ASKED], chosen=[SAID], rejected="4")
    assert (given["chosen"], given["rejected"], given["context"]) == (
        [ASKED, SAID],
        [ASKED, SAID | {"content": "4"}],
        1,
    )
    shared = pair(chosen=[ASKED, SAID, ASKED, SAID], rejected=[ASKED, SAID, ASKED, SAID | {"content": "4"}])
    assert shared["context"] == 3


@pytest.mark.parametrize("prompt", ["Sum?", [ASKED]])
def test_a_prompt_that_both_answers_contain_is_not_repeated(prompt):
    given = pair(prompt=prompt, chosen=[ASKED, SAID], rejected=[ASKED, SAID | {"content": "4"}])
    assert (given["chosen"], given["context"]) == ([ASKED, SAID], 1)
    guided = [{"role": "system", "content": "Add."}, ASKED]
    given = pair(prompt="Sum?", chosen=[*guided, SAID], rejected=[*guided, SAID | {"content": "4"}])
    assert (given["chosen"], given["context"]) == ([*guided, SAID], 2)


def test_answers_that_begin_with_other_messages_follow_the_prompt():
    guided = [{"role": "system", "content": "Add."}, ASKED]
    given = pair(prompt=guided, chosen=[SAID], rejected=[SAID | {"content": "4"}])
    assert (given["chosen"], given["context"]) == ([*guided, SAID], 2)


@pytest.mark.parametrize(
    ("read", "columns", "error"),
    [
        (conversation, {"prompt": "Sum?"}, "no finished conversation"),
        (conversation, {"messages": [ASKED, SAID], "conversations": []}, "several .*messages, conversations"),
        (conversation, {"messages": [ASKED, SAID], "prompt": "1?", "completion": "2"}, "several .*prompt, completion"),
        (conversation, {"messages": [ASKED]}, "an answer of the assistant"),
        (conversation, {"messages": [SAID, ASKED]}, "must begin with another message"),
        (conversation, {"messages": "Sum?"}, "must be a list of messages"),
        (conversation, {"messages": [ASKED, {"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "'function'"),
        (conversation, {"messages": [ASKED, {"role": "assistant", "tool_calls": 5}]}, "must be a list of calls"),
        (conversation, {"messages": [{"role": ["user"], "content": "Sum?"}, SAID]}, "a string as 'role', got list"),
        (conversation, {"messages": [ASKED, SAID | {"weight": 0.5}]}, "message 2 .*'weight' float 0.5.* to 1 or 0"),
        (conversation, {"messages": [ASKED, SAID | {"weight": "0"}]}, "message 2 .*'weight' str '0'.* to 1 or 0"),
        (conversation, {"messages": [ASKED, SAID, SAID]}, "messages 2 and 3 are both assistant turns"),
        (conversation, {"messages": [ASKED, SAID], "tools": "{"}, "is not JSON"),
        (conversation, {"messages": [ASKED, SAID], "system": ["Add."]}, "'system' must be a string, got list"),
        (
            conversation,
            {"messages": [{"role": "system", "content": "Add."}, ASKED, SAID], "system": "Subtract."},
            "another system message than the column 'system'",
        ),
        (pair, {"chosen": [ASKED, SAID]}, "no 'rejected'"),
        (pair, {"prompt": "Sum?", "chosen": "3", "rejected": "3"}, "are equal"),
        (
            pair,
            {"chosen": [ASKED, SAID], "rejected": [ASKED | {"content": "What is 5?"}, SAID]},
            "line 1: 'chosen' and 'rejected' answer different questions: message 1",
        ),
        (
            pair,
            {"chosen": [ASKED, SAID, ASKED, SAID], "rejected": [ASKED, SAID, ASKED | {"content": "Why?"}, SAID]},
            "answer different questions: message 3",
        ),
        (
            pair,
            {"chosen": [ASKED, SAID], "rejected": [ASKED, SAID, ASKED, SAID]},
            "line 1: 'rejected' only continues 'chosen', so there is nothing to compare",
        ),
        (
            pair,
            {"chosen": [ASKED, SAID, ASKED, SAID], "rejected": [ASKED, SAID]},
            "'chosen' only continues 'rejected'",
        ),
    ],
)
def test_rows_that_cannot_be_trained_are_refused_with_their_place(read, columns, error):
    with pytest.raises(UserError, match=error) as caught:
        read(**columns)
    assert str(caught.value).startswith("rows, line 1")


def test_pairs_may_differ_from_the_result_of_a_tool():
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "roll", "arguments": {}}}]}
    one, other = ([ASKED, call, {"role": "tool", "content": rolled}, SAID] for rolled in ("3", "5"))
    assert pair(chosen=one, rejected=other)["context"] == 2
