"""A proxy in front of a gateway that answers the first requests with errors, as a busy service does."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route


class Proxy:
    """Answers the first requests for turns with these statuses; with `late` after the gateway has answered."""

    def __init__(self, target, statuses, *, late=False):
        self.target, self.statuses, self.late = target, list(statuses), late
        self.num_requests = 0

    async def answer(self, request):
        is_turn = request.method == "POST" and not request.url.path.endswith("/count_tokens")
        self.num_requests += is_turn
        status = self.statuses.pop(0) if is_turn and self.statuses else None
        body = await request.body()
        if status is None or self.late:
            kept = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}
            async with httpx.AsyncClient(timeout=60) as client:
                url = self.target + request.url.path
                answer = await client.request(request.method, url, content=body, headers=kept)
        if status is not None:
            return Response("busy", status, {"retry-after-ms": "1"})
        return Response(answer.content, answer.status_code, media_type=answer.headers["content-type"])

    @asynccontextmanager
    async def running(self):
        app = Starlette(routes=[Route("/{path:path}", self.answer, methods=["GET", "POST"])])
        server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, ws="none"))
        task = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.should_exit = True
        await task
