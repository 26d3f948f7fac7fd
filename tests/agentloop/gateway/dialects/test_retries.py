"""The official clients send requests again after 429 and 5xx: no turn is sampled twice for one answer."""

import anthropic
import openai
import pytest

from agentloop import StopReason
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.engines.token_listeners import listener
from agentloop.errors import EngineError, FailureKind
from tests.support.busy_proxy import Proxy

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "2 + 3?"}]
ANSWER = "It is 5."


class LostOnce(ScriptedEngine):
    """Dies in its first turn after a token that no client can have read, and then samples another turn."""

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        turn = await super().generate(prompt, params, trajectory_id=trajectory_id)
        self.num_asked += 1
        if self.num_asked == 1:
            listener()([params.stop_token_ids[0]])
        return turn


class Broken(ScriptedEngine):
    async def generate(self, prompt, params, *, trajectory_id, images=()):
        self.num_asked += 1
        raise EngineError("out of memory")


async def chat(url, key, *, stream):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=3) as client:
        answer = await client.chat.completions.create(model="m", messages=QUESTION, stream=stream)
        if not stream:
            return answer.choices[0].message.content
        return "".join([event.choices[0].delta.content or "" async for event in answer if event.choices])


async def responses(url, key, *, stream):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=3) as client:
        if not stream:
            return (await client.responses.create(model="m", input=QUESTION)).output_text
        async with client.responses.stream(model="m", input=QUESTION) as events:
            return (await events.get_final_response()).output_text


async def messages(url, key, *, stream):
    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=3) as client:
        asked = {"model": "m", "max_tokens": 64, "messages": QUESTION}
        if not stream:
            return (await client.messages.create(**asked)).content[0].text
        async with client.messages.stream(**asked) as events:
            return await events.get_final_text()


@pytest.mark.parametrize("late", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("ask", [chat, responses, messages])
async def test_a_request_that_is_sent_again_is_one_turn(recorder, opened, ids_of, ask, stream, late):
    async with opened(recorder(ANSWER + "<|im_end|>", "Another.<|im_end|>")) as (session, endpoint):
        proxy = Proxy(endpoint.base_url.rsplit("/", 2)[0], [429, 503, 500], late=late)
        async with proxy.running() as url:
            assert await ask(url, endpoint.api_key, stream=stream) == ANSWER
    assert proxy.num_requests == 4
    (stream,) = session.trajectories()
    if late:  # The first request says nothing of a retry, and the others do.
        assert session.num_turns == 1
    assert stream.token_ids[stream.loss_mask].tolist() == ids_of(ANSWER + "<|im_end|>")


@pytest.mark.parametrize("ask", [chat, responses, messages])
async def test_a_turn_of_an_engine_that_was_lost_is_asked_for_again(opened, ids_of, ask):
    engine = LostOnce([ids_of(ANSWER + "<|im_end|>")])
    engine.num_asked = 0
    async with opened(engine) as (session, endpoint):
        assert await ask(endpoint.root_url, endpoint.api_key, stream=True) == ANSWER
    assert (engine.num_asked, session.num_turns, session.refused) == (2, 1, None)
    (stream,) = session.trajectories()
    assert stream.token_ids[stream.loss_mask].tolist() == ids_of(ANSWER + "<|im_end|>")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("ask", [chat, responses, messages])
async def test_an_engine_that_failed_is_not_asked_again(opened, ask, stream):
    engine = Broken([[0]])
    engine.num_asked = 0
    async with opened(engine) as (session, endpoint):
        error = anthropic.InternalServerError if ask is messages else openai.InternalServerError
        with pytest.raises(error, match="out of memory"):
            await ask(endpoint.root_url, endpoint.api_key, stream=stream)
    assert (engine.num_asked, session.refused) == (1, StopReason.ENGINE_ERROR)
    assert session.failures == {FailureKind.ENGINE: 1}
    assert session.trajectories() == []
