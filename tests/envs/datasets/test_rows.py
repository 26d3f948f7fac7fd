from dataclasses import dataclass

import pytest

from agentloop.envs.datasets.rows import read_row
from agentloop.errors import UserError


def test_prompt_string_becomes_a_user_message():
    row = read_row({"prompt": "2 + 2?", "answer": 4}, "d, line 1", 0)
    assert row == {
        "prompt": "2 + 2?",
        "answer": 4,
        "messages": [{"role": "user", "content": "2 + 2?"}],
        "id": "0",
    }


def test_messages_and_a_prompt_must_say_the_same():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    with pytest.raises(
        UserError, match=r"d, line 4: 'messages' and 'prompt' are both set and differ.*Remove the other"
    ):
        read_row({"messages": messages, "prompt": "Hi"}, "d, line 4", 3)
    assert read_row({"messages": messages, "prompt": None, "id": 7}, "d", 3)["id"] == "7"
    read = read_row({"prompt": "Hi"}, "d", 3)  # a dataset function may yield rows that were read before
    assert read_row(read, "d", 3) == read


@pytest.mark.parametrize(
    "columns",
    [{"answer": float("nan")}, {"answer": float("-inf")}, {"reward_model": {"ground_truth": float("nan")}}],
)
def test_an_answer_that_is_no_number_does_not_vanish(columns):
    with pytest.raises(UserError, match=r"d, row 2: the answer is the number (nan|-inf).*set it to null"):
        read_row({"prompt": "0 / 0?", **columns}, "d, row 2", 1)


def test_verl_columns_are_read_unchanged():
    raw = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "Tom has 72 apples."}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {"split": "train", "index": 12},
    }
    row = read_row(raw, "d", 0)
    assert row["messages"] == raw["prompt"]
    assert row["answer"] == "72"
    assert row["id"] == "12"
    assert row["data_source"] == "openai/gsm8k"
    assert row["extra_info"] == {"split": "train", "index": 12}


def test_null_columns_are_dropped():
    row = read_row(
        {"prompt": [{"role": "user", "content": "Hi", "tool_calls": None}], "answer": None, "level": float("nan")},
        "d",
        0,
    )
    assert row["messages"] == [{"role": "user", "content": "Hi"}]
    assert "answer" not in row
    assert "level" not in row


def test_call_without_content_gets_empty_content():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    row = read_row({"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}, "d", 0)
    assert row["messages"] == [{"role": "assistant", "content": "", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("just text", ["d, line 3", "object"]),
        ({"promt": "Hi"}, ["'messages' nor 'prompt'", "'prompt' be 'promt'"]),
        ({"prompt": "  "}, ["empty"]),
        ({"prompt": 5}, ["'prompt'", "int 5"]),
        ({"messages": []}, ["'messages'", "list"]),
        ({"messages": ["Hi"]}, ["message 1", "'role'"]),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "usr", "content": "b"}]}, ["message 2", "'user'"]),
        ({"messages": [{"role": "user", "content": 3}]}, ["message 1", "int 3"]),
        ({"messages": [{"role": "user"}]}, ["message 1", "content"]),
    ],
)
def test_malformed_rows_raise_with_location_and_reason(raw, words):
    with pytest.raises(UserError) as caught:
        read_row(raw, "d, line 3", 2)
    for word in ["d, line 3", *words]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_row_without_a_prompt_is_enough_for_an_environment_that_makes_its_own():
    assert read_row({"start": 3}, "d", 0, needs_prompt=False) == {"start": 3, "id": "0"}
    assert read_row({"prompt": "Hi"}, "d", 0, needs_prompt=False)["messages"] == [{"role": "user", "content": "Hi"}]


def test_a_dataclass_is_a_row():
    @dataclass
    class Task:
        prompt: str
        answer: int

    assert read_row(Task("2 + 2?", 4), "d", 0)["answer"] == 4
