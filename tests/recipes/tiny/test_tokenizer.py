from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.recipes.tiny.tokenizer import CONTROL_TOKENS, TAG_TOKENS, build_tokenizer

tokenizer = cache(build_tokenizer)

TOOLS = [
    {
        "type": "function",
        "function": {"name": "run", "description": "Runs.", "parameters": {"type": "object", "properties": {}}},
    }
]
CALL = {"id": "call_0", "type": "function", "function": {"name": "run", "arguments": {"code": 'print("\u00e9")'}}}
MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is 12 + 3?"},
    {"role": "assistant", "content": "", "reasoning_content": "I need the sum.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "15"},
    {"role": "tool", "content": "15"},
    {"role": "assistant", "content": "It is 15."},
    {"role": "user", "content": "And 1 + 1?"},
    {"role": "assistant", "content": "2", "reasoning_content": "Easy."},
]


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_round_trips(text):
    assert tokenizer().decode(tokenizer().encode(text, add_special_tokens=False)) == text


def test_markers_are_single_tokens():
    for token in CONTROL_TOKENS + TAG_TOKENS:
        assert tokenizer().encode(f"a{token}b")[1:-1] == [tokenizer().convert_tokens_to_ids(token)]
    assert set(tokenizer().all_special_tokens) >= {"<|im_end|>", "<|endoftext|>"}
    assert tokenizer().eos_token == "<|im_end|>"
    assert "<tool_call>" in tokenizer().decode(tokenizer().encode("<tool_call>"), skip_special_tokens=True)


def test_every_digit_is_one_token():
    assert tokenizer().tokenize("print(4837 * 21)") == [
        "print",
        "(",
        "4",
        "8",
        "3",
        "7",
        "\u0120*",
        "\u0120",
        "2",
        "1",
        ")",
    ]


def test_build_is_deterministic():
    assert build_tokenizer().backend_tokenizer.to_str() == tokenizer().backend_tokenizer.to_str()


def test_full_conversation_renders_like_qwen3():
    text = tokenizer().apply_chat_template(MESSAGES, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    system, rest = text.split("<|im_end|>\n", 1)
    assert system.startswith("<|im_start|>system\nBe kind.\n\n# Tools\n\n<tools>\n")
    assert '\n{"type": "function", "function": {"name": "run"' in system
    call = '<tool_call>\n{"name": "run", "arguments": {"code": "print(\\"\u00e9\\")"}}\n</tool_call>'
    assert rest == (
        "<|im_start|>user\nWhat is 12 + 3?<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nI need the sum.\n</think>\n\n{call}\n{call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n15\n</tool_response>\n<tool_response>\n15\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nIt is 15.<|im_end|>\n"
        "<|im_start|>user\nAnd 1 + 1?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nEasy.\n</think>\n\n2<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("num_messages", [2, 3, 5, 6, 7])
def test_longer_conversation_only_appends(num_messages):
    def render(messages, **options):
        return tokenizer().apply_chat_template(messages, tools=TOOLS, tokenize=False, **options)

    whole = render(MESSAGES)
    assert whole.startswith(render(MESSAGES[:num_messages]))
    if num_messages in (2, 5, 7):  # an assistant turn follows
        assert whole.startswith(render(MESSAGES[:num_messages], add_generation_prompt=True))


def test_late_system_message_is_rejected():
    with pytest.raises(Exception, match="must be the first"):
        tokenizer().apply_chat_template([*MESSAGES[1:], MESSAGES[0]], tokenize=False)
