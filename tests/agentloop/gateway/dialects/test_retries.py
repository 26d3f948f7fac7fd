"""The official clients send requests again after 429 and 5xx: no turn is sampled twice for one answer."""

import asyncio
from contextlib import asynccontextmanager

import anthropic
import httpx
import openai
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "2 + 3?"}]
ANSWER = "It is 5."


class Proxy:
    """Answers the first requests with these statuses; with `late` after the gateway has answered."""

    def __init__(self, target, statuses, *, late):
        self.target, self.statuses, self.late = target, list(statuses), late
        self.num_requests = 0

    async def answer(self, request):
        self.num_requests += 1
        status = self.statuses.pop(0) if self.statuses else None
        body = await request.body()
        if status is None or self.late:
            kept = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}
            async with httpx.AsyncClient() as client:
                answer = await client.post(self.target + request.url.path, content=body, headers=kept)
        if status is not None:
            return Response("busy", status, {"retry-after-ms": "1"})
        return Response(answer.content, answer.status_code, media_type=answer.headers["content-type"])

    @asynccontextmanager
    async def running(self):
        app = Starlette(routes=[Route("/{path:path}", self.answer, methods=["POST"])])
        server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, ws="none"))
        task = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.should_exit = True
        await task


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
