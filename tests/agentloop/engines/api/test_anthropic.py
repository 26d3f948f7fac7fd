import pytest
from PIL import Image

from agentloop import Limits, StopReason, ToolResult, tool
from agentloop.types.requests import Sampling

pytestmark = pytest.mark.slow
QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Oslo?"}]
THOUGHT = {"type": "thinking", "thinking": "Look it up.", "signature": "c2ln"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}


def message(*blocks, reason="end_turn", usage=None):
    given = usage or {"input_tokens": 100, "output_tokens": 10}
    return {"type": "message", "role": "assistant", "content": list(blocks), "stop_reason": reason, "usage": given}


def text(value):
    return {"type": "text", "text": value}


async def test_an_episode_with_tools_is_played_and_priced(service, play):
    cached = {"input_tokens": 20, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 40, "output_tokens": 5}
    service.script += [message(THOUGHT, CALL, reason="tool_use"), message(text("It is sunny."), usage=cached)]
    prices = {"input": 3.0, "cached_input": 0.3, "cache_write": 3.75, "output": 15.0}
    trajectory = await play("anthropic", QUESTION, prices=prices)
    assert trajectory.reward == 1.0
    assert [m["role"] for m in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert trajectory.messages[2]["reasoning_content"] == "Look it up."
    assert trajectory.metrics["api/input_tokens"] == 100 + 160
    dollars = (100 * 3 + 10 * 15) + (20 * 3 + 100 * 0.3 + 40 * 3.75 + 5 * 15)
    assert trajectory.metrics["api/cost"] == pytest.approx(dollars / 1e6)
    first, second = service.requests
    assert first["system"] == "Be brief."
    assert first["tools"][0]["input_schema"]["properties"]["city"]["type"] == "string"
    assert "tool_choice" not in first
    assert second["messages"][1] == {"role": "assistant", "content": [THOUGHT, CALL]}  # with its signature
    assert second["cache_control"] == {"type": "ephemeral"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("Oslo: sunny")]}
    assert second["messages"][2] == {"role": "user", "content": [result]}
    assert service.headers[0]["x-api-key"] == "key-of-anthropic"
    assert service.headers[0]["anthropic-version"] == "2023-06-01"


async def test_sampling_is_mapped(service, play):
    service.has_extensions = True  # the published schema has no temperature any more, but older models take it
    service.script += [message(text("sunny"))]
    sampling = Sampling(temperature=0.3, top_p=0.9, top_k=5, stop_strings=("END",))
    await play("anthropic", QUESTION, sampling=sampling, limits=Limits(max_turn_tokens=77), tools=(), cache=False)
    expected = {"temperature": 0.3, "top_p": 0.9, "top_k": 5, "stop_sequences": ["END"], "max_tokens": 77}
    messages = [{"role": "user", "content": [text("Weather in Oslo?")]}]
    assert service.requests == [expected | {"model": "model-a", "system": "Be brief.", "messages": messages}]


async def test_messages_take_turns_and_examples_keep_their_calls(service, play):
    service.script += [message(text("sunny"))]
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    examples = [
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rainy", "tool_call_id": "a"},
        {"role": "user", "content": "Weather in Oslo?"},
    ]
    await play("anthropic", examples, cache=False)
    asked, called, answered = service.requests[0]["messages"]
    assert asked == {"role": "user", "content": [text("Weather in Rome?")]}
    used = {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}}
    assert called == {"role": "assistant", "content": [used]}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [text("rainy")]}
    assert answered == {"role": "user", "content": [result, text("Weather in Oslo?")]}


@tool
def photo() -> ToolResult:
    """Return a photo."""
    return ToolResult([{"type": "image", "image": Image.new("RGB", (30, 30))}])


async def test_images_of_tools_are_sent(service, play):
    call = {"type": "tool_use", "id": "p", "name": "photo", "input": {}}
    service.script += [message(call, reason="tool_use"), message(text("sunny"))]
    await play("anthropic", QUESTION, tools=(photo,))
    (result,) = service.requests[1]["messages"][2]["content"]
    (image,) = result["content"]
    assert image["source"]["media_type"] == "image/png"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("refusal", StopReason.COMPLETED), ("max_tokens", StopReason.MAX_TURN_TOKENS)],
)
async def test_refusals_are_judged_and_cut_turns_end_the_episode(service, play, reason, expected):
    service.script += [message(text("No."), CALL, reason=reason) if reason == "max_tokens" else message(reason=reason)]
    trajectory = await play("anthropic", QUESTION)
    assert trajectory.stop_reason is expected
    assert trajectory.metrics["api/refusals"] == (reason == "refusal")
