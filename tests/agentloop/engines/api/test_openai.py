import json
import math

import pytest
from PIL import Image

from agentloop import Limits, StopReason
from agentloop.types.requests import Sampling
from agentloop.types.trajectory_io import from_dict, same, to_dict

pytestmark = pytest.mark.slow
QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Oslo?"}]


def completion(content=None, *, calls=(), reason=None, usage=(100, 10), **fields):
    message = {"role": "assistant", "content": content, **fields}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{k}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for k, (name, arguments) in enumerate(calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": reason or ("tool_calls" if calls else "stop")}
    prompt, sampled = usage
    details = {"cached_tokens": prompt // 2}
    return {
        "choices": [choice],
        "usage": {"prompt_tokens": prompt, "completion_tokens": sampled, "prompt_tokens_details": details},
    }


async def test_an_episode_with_tools_is_played_and_priced(service, play):
    call = completion(None, calls=[("weather", '{"city": "Oslo"}')])
    service.script += [call, completion("It is sunny.", usage=(200, 20))]
    prices = {"input": 2.0, "cached_input": 1.0, "output": 10.0}
    trajectory = await play("openai", QUESTION, prices=prices)
    assert trajectory.reward == 1.0
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert [message["role"] for message in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert trajectory.messages[3]["content"] == "Oslo: sunny"
    assert trajectory.metrics["api/input_tokens"] == 300
    assert trajectory.metrics["api/output_tokens"] == 30
    assert trajectory.metrics["api/cost"] == pytest.approx((150 * 2 + 150 * 1 + 30 * 10) / 1e6)
    first, second = service.requests
    assert first["model"] == "model-a"
    assert first["messages"] == QUESTION
    assert first["tools"][0]["function"]["name"] == "weather"
    assert second["messages"][2] == call["choices"][0]["message"]  # exactly as it came
    assert second["messages"][3] == {"role": "tool", "content": "Oslo: sunny", "tool_call_id": "call_0"}
    assert service.headers[0]["authorization"] == "Bearer key-of-openai"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_reasoning_is_read_and_sent_back_under_its_name(service, play, name):
    service.has_extensions = True
    call = completion(None, calls=[("weather", '{"city": "Oslo"}')], **{name: "Look it up."})
    service.script += [call, completion("sunny")]
    trajectory = await play("openai", QUESTION)
    assert trajectory.messages[2]["reasoning_content"] == "Look it up."
    assert service.requests[1]["messages"][2][name] == "Look it up."


async def test_sampling_is_mapped_and_a_field_can_be_set_or_removed(service, play):
    service.script += [completion("sunny")]
    sampling = Sampling(temperature=0.3, top_p=0.9, top_k=5, stop_strings=("END",))
    extra = {"top_k": None, "reasoning_effort": "low"}
    await play("openai", QUESTION, sampling=sampling, limits=Limits(max_turn_tokens=77), tools=(), extra_body=extra)
    (request,) = service.requests
    seed = 3 * 1_000_003
    expected = {"temperature": 0.3, "top_p": 0.9, "stop": ["END"], "max_completion_tokens": 77, "seed": seed}
    assert request == expected | {"model": "model-a", "messages": QUESTION, "reasoning_effort": "low"}


async def test_images_of_prompts_are_sent(service, play):
    service.script += [completion("sunny")]
    image = Image.new("RGB", (40, 30), "red")
    content = [{"type": "text", "text": "What is it?"}, {"type": "image", "image": image}]
    trajectory = await play("openai", [{"role": "user", "content": content}])
    text, shown = service.requests[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is it?"}
    assert shown["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert trajectory.images == [image]


async def test_the_trajectory_is_a_transcript_that_can_be_stored_and_viewed(service, play):
    from agentloop.trainer.viewer.stream import shown

    service.script += [completion("sunny ☀")]
    trajectory = await play("openai", QUESTION)
    assert all(math.isnan(value) for value in trajectory.logprobs[trajectory.loss_mask])
    data = to_dict(trajectory)
    assert same(from_dict(data), trajectory)
    prompt, sampled = shown(data, None)["segments"]
    assert "Weather in Oslo?" in prompt["text"]
    assert "sunny" in "".join(sampled["pieces"])
    assert set(sampled["logprobs"]) == {None}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("{city: Oslo", "not valid JSON"),
        ('["Oslo"]', "not a JSON object"),
        ('{"city": ' + "[" * 100_000, "nested too deeply"),
    ],
)
async def test_malformed_calls_are_answered_with_an_error(service, play, arguments, complaint):
    service.script += [completion(None, calls=[("weather", arguments)]), completion("no idea")]
    trajectory = await play("openai", QUESTION)
    assert complaint in trajectory.messages[3]["content"]
    assert trajectory.failures == {"model": 1}
    assert service.requests[1]["messages"][3]["tool_call_id"] == "call_0"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(max_turn_tokens=50), StopReason.MAX_TURN_TOKENS),
        (Limits(max_tokens=200), StopReason.MAX_TOKENS),
    ],
)
async def test_a_cut_turn_ends_the_episode_and_its_calls_do_not_run(service, play, limits, expected):
    service.script += [completion("Let me", calls=[("weather", '{"ci')], reason="length")]
    trajectory = await play("openai", QUESTION, limits=limits)
    assert trajectory.stop_reason is expected
    assert len(trajectory.messages) == 3


@pytest.mark.parametrize(
    "answer", [completion(None, refusal="I cannot help."), completion("", reason="content_filter")]
)
async def test_refusals_are_counted_and_judged(service, play, answer):
    service.script += [answer]
    trajectory = await play("openai", QUESTION)
    assert trajectory.metrics["api/refusals"] == 1
    assert trajectory.reward == 0.0


async def test_a_service_may_leave_its_usage_open(service, play):
    for usage in (None, {"prompt_tokens": None, "completion_tokens": None, "prompt_tokens_details": None}):
        service.script += [completion("sunny") | {"usage": usage}]
        trajectory = await play("openai", QUESTION)
        assert (trajectory.reward, trajectory.metrics["api/input_tokens"]) == (1.0, 0)


async def test_lone_surrogates_become_replacement_characters(service, play):
    question = [{"role": "user", "content": "Weather in \ud800?"}]
    call = completion("odd \udc00", calls=[("weather", '{"city": "\\ud800"}')])
    service.script += [call, completion("sunny")]
    trajectory = await play("openai", question)
    assert trajectory.stop_reason is StopReason.COMPLETED
    _, asked, answered = service.requests[1]["messages"]
    assert service.requests[0]["messages"][0]["content"] == "Weather in \ufffd?"
    assert asked["content"] == "odd \ufffd"
    assert answered["content"] == trajectory.messages[2]["content"] == "\ufffd: sunny"
    assert same(from_dict(json.loads(json.dumps(to_dict(trajectory)))), trajectory)
