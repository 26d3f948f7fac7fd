"""What a service may do wrong, and what a user may."""

import asyncio
import time
from email.utils import formatdate

import pytest

from agentloop import StopReason
from agentloop.engines import create
from agentloop.engines.base import FinishReason, SamplingParams
from agentloop.errors import EngineError, UserError
from agentloop.process import retries
from agentloop.rendering.transcript import ids_of
from tests.agentloop.engines.api.test_anthropic import message, text
from tests.agentloop.engines.api.test_openai import QUESTION, completion

pytestmark = pytest.mark.slow
SUNNY = completion("sunny")
TRANSIENT = {
    "overload": (429, {"error": {"message": "slow down"}}, {"retry-after": "0.01"}),
    "server error": (500, b"<html>oops</html>", {}),
    "dropped connection": (200, b'{"choices": [', {"content-length": "500", "x-drop": "1"}),
    "invalid JSON": (200, b"not json", {}),
    "answer of another kind": (200, {"hello": "world"}, {}),
    "unknown finish reason": completion("hm", reason="later"),
    "wrong compression": (200, b"not gzip", {"content-encoding": "gzip"}),
    "JSON that is nested too deeply": (200, b"[" * 100_000, {}),
    "call without a name": completion(None, calls=[(None, "{}")]),
    "call whose arguments are not text": completion(None, calls=[("weather", {"city": "Oslo"})]),
    "call without a function": completion(None, tool_calls=[{"id": "a", "type": "custom", "custom": {}}]),
    "call without an id": completion(None, tool_calls=[{"function": {"name": "weather", "arguments": "{}"}}]),
}


@pytest.mark.parametrize("reply", TRANSIENT.values(), ids=TRANSIENT)
async def test_a_failure_is_retried(service, play, reply):
    service.script += [reply, reply, SUNNY]
    trajectory = await play("openai", QUESTION)
    assert trajectory.reward == 1.0
    assert trajectory.metrics["api/retries"] == 2
    assert service.requests[0] == service.requests[2]


@pytest.mark.parametrize("reply", TRANSIENT.values(), ids=TRANSIENT)
async def test_a_failure_that_stays_ends_the_episode(service, play, reply):
    service.script += [reply, reply]
    trajectory = await play("openai", QUESTION, attempts=2)
    assert trajectory.stop_reason is StopReason.ENGINE_ERROR
    assert trajectory.failures == {"engine": 1}
    assert trajectory.error.startswith(f"no valid response from {service.url} in 2 attempts: ")


@pytest.mark.parametrize("missing", ["id", "name", "input"])
async def test_a_malformed_call_of_anthropic_is_retried(service, play, missing):
    call = {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Oslo"}}
    del call[missing]
    service.script += [message(call, reason="tool_use"), message(text("sunny"))]
    trajectory = await play("anthropic", QUESTION)
    assert trajectory.reward == 1.0
    assert trajectory.metrics["api/retries"] == 1


@pytest.mark.parametrize(
    "complaint",
    [
        "Unsupported value: 'temperature'",
        "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead",
        "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens",
    ],
)
async def test_an_error_of_the_request_is_not_retried(service, play, complaint):
    service.script += [(400, {"error": {"message": complaint}}, {})]
    trajectory = await play("openai", QUESTION)
    assert trajectory.error == f"{service.url} rejected the request: status 400: {complaint}"
    assert trajectory.failures == {"engine": 1}


async def test_a_spent_quota_is_not_retried(service, play):
    service.script += [(429, {"error": {"message": "no credit", "code": "insufficient_quota"}}, {})]
    assert "no credit" in (await play("openai", QUESTION)).error


async def test_a_full_context_ends_the_episode_like_the_limit(service, play):
    full = (400, {"error": {"message": "too many", "code": "context_length_exceeded"}}, {})
    service.script += [completion(None, calls=[("weather", '{"city": "Oslo"}')]), full]
    trajectory = await play("openai", QUESTION)
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert trajectory.reward == 0.0  # it is judged
    service.script += [full]
    trajectory = await play("openai", QUESTION)
    assert trajectory.stop_reason is StopReason.PROMPT_TOO_LONG
    assert trajectory.error == f"{service.url}: too many"


def test_the_pause_grows_and_follows_the_server():
    assert 0.5 <= retries.seconds_before_retry(1, 1.0) <= 1.0
    assert 2.0 <= retries.seconds_before_retry(3, 1.0) <= 4.0
    assert retries.seconds_before_retry(1, 1.0, {"retry-after": "7"}) == 7.0
    date = formatdate(time.time() + 60, usegmt=True)
    assert 50 < retries.seconds_before_retry(1, 1.0, {"retry-after": date}) <= 60
    assert retries.seconds_before_retry(1, 1.0, {"retry-after": "soon"}) <= 1.0


async def test_at_most_so_many_requests_run_at_once(service, play):
    engine = create("openai", model="m", base_url=service.url, concurrency=2)
    service.seconds = 0.05
    service.script += [SUNNY] * 6
    prompt = ids_of([{"message": QUESTION[1]}])
    turns = (engine.generate(prompt, SamplingParams(max_tokens=5), trajectory_id=str(k)) for k in range(6))
    await asyncio.gather(*turns)
    await engine.close()
    assert service.most == 2


async def test_closing_aborts_running_turns(service):
    engine = create("openai", model="m", base_url=service.url, pause=60.0)
    service.script += [TRANSIENT["server error"]]
    prompt = ids_of([{"message": QUESTION[1]}])
    turn = asyncio.ensure_future(engine.generate(prompt, SamplingParams(max_tokens=5), trajectory_id="t"))
    await asyncio.to_thread(service.came.wait, 30)
    await engine.close()
    assert (await turn).finish_reason is FinishReason.ABORT
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(prompt, SamplingParams(max_tokens=5), trajectory_id="t")


def test_a_missing_key_is_one_sentence(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match=r"OPENAI_API_KEY is not set, but https://api\.openai\.com/v1 needs an API key"):
        create("openai", model="m")


async def test_a_wrong_key_is_one_sentence(service, play):
    service.models_status = 401
    with pytest.raises(UserError, match=r"rejects the API key .* ANTHROPIC_API_KEY"):
        await play("anthropic", QUESTION)


async def test_a_wrong_address_is_one_sentence(play):
    with pytest.raises(UserError, match=r"No response from http://127.0.0.1:9/v1: ConnectError .*base_url"):
        await play("openai", QUESTION, base_url="http://127.0.0.1:9/v1")


async def test_an_unknown_model_is_one_sentence(service, play):
    service.script += [(404, {"error": {"message": "The model does not exist."}}, {})]
    with pytest.raises(UserError, match=r"the model 'model-x': .* Did you mean 'model-.'. It lists: model-a, model-b"):
        await play("openai", QUESTION, model="model-x")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"prices": {"inputs": 1.0}}, "has no option 'inputs'. Did you mean 'input'"),
        ({"base_url": "localhost:8000/v1"}, "base_url"),
        ({"tempo": 1}, "tempo"),
    ],
)
async def test_wrong_options_are_refused(play, options, complaint):
    with pytest.raises(UserError, match=complaint):
        await play("openai", QUESTION, **options)
