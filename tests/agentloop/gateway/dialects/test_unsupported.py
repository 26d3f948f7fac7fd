"""Fields of requests that are neither read nor ignored in silence."""

import json

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from agentloop.gateway.dialects.anthropic import Anthropic
from agentloop.gateway.dialects.chat import Chat, _Body
from agentloop.gateway.dialects.responses import Responses
from agentloop.gateway.turns.errors import ApiError
from agentloop.gateway.turns.memory import Memory

pytestmark = pytest.mark.slow  # vLLM takes seconds to import

QUESTION = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 4}
BODIES = {Chat: QUESTION, Responses: {"input": "?"}, Anthropic: QUESTION}
CHANGES_NEITHER_TOKENS_NOR_THEIR_FORM = {
    *("user", "priority", "request_id", "session_id", "cache_salt", "stream_interval", "mm_payload"),
    *("kv_transfer_params", "ec_transfer_params", "routed_experts_prompt_start", "return_mm_kwargs"),
    *("skip_special_tokens", "spaces_between_special_tokens", "truncation_side"),
    *("parallel_tool_calls", "reasoning_effort", "include_reasoning"),  # gateway.md says so
}


def read(dialect, **fields):
    return dialect().read(json.dumps(BODIES[dialect] | fields).encode(), Memory())


def test_every_field_of_vllms_chat_api_is_read_or_refused():
    own = set(_Body.model_fields)
    for name in set(ChatCompletionRequest.model_fields) - own - CHANGES_NEITHER_TOKENS_NOR_THEIR_FORM:
        given = False if name == "add_generation_prompt" else 3
        with pytest.raises(ApiError, match=f"`{name}` is not supported here"):
            read(Chat, **{name: given})


def test_defaults_of_vllms_chat_api_are_taken():
    defaults = ChatCompletionRequest(messages=QUESTION["messages"]).model_dump(
        mode="json", exclude=set(_Body.model_fields)
    )
    assert {"bad_words", "min_tokens", "length_penalty"} <= set(defaults)
    assert read(Chat, **defaults).n == 1


@pytest.mark.parametrize("dialect", BODIES)
def test_no_api_ignores_what_changes_the_tokens(dialect):
    for name, value in (("min_p", 0.1), ("bad_words", ["no"]), ("guided_json", {}), ("chat_template_kwargs", {"a": 1})):
        with pytest.raises(ApiError, match=f"`{name}` is not supported here"):
            read(dialect, **{name: value})
    assert read(dialect, n=1, min_p=0, bad_words=[], guided_json=None, chat_template_kwargs={}, length_penalty=1.0)


@pytest.mark.parametrize(
    ("dialect", "field", "instead"),
    [
        (Chat, "guided_json", "Use `response_format`"),
        (Responses, "guided_json", "Use `text.format`"),
        (Responses, "prompt", "Send the whole input"),
        (Chat, "stop_sequences", "Use `stop`"),
        (Responses, "max_tokens", "Use `max_output_tokens`"),
        (Responses, "response_format", "Use `text.format`"),
        (Responses, "stop", "Set sampling.stop_strings"),
        (Anthropic, "stop", "Use `stop_sequences`"),
        (Anthropic, "response_format", "Use `output_config.format`"),
        (Anthropic, "n", "Send the request several times"),
        (Anthropic, "structured_outputs", "Use `output_config.format`"),
        (Anthropic, "mcp_servers", "Run the tools in the agent"),
    ],
)
def test_the_error_says_what_to_use_instead(dialect, field, instead):
    with pytest.raises(ApiError, match=f"`{field}` is not supported here. {instead}"):
        read(dialect, **{field: {"id": "x"}})
