"""A scripted service: it answers in turn, records what it gets, and checks it against the published schemas."""

import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import ConfigDict, TypeAdapter

from agentloop import Limits, tool
from agentloop.engines import ENGINES, create
from agentloop.envs.tool_env import ToolEnv
from agentloop.episodes.loop import AgentLoop
from agentloop.registry.named_objects import load_object
from agentloop.rendering.transcript import Transcript
from agentloop.tools.toolset import Toolset

SCHEMAS = {}
for _path, _schema in (
    ("/v1/chat/completions", CompletionCreateParamsNonStreaming),
    ("/v1/messages", MessageCreateParamsNonStreaming),
):
    _schema.__pydantic_config__ = ConfigDict(extra="forbid")
    SCHEMAS[_path] = TypeAdapter(_schema)


class Service:
    """`script` has answers: bodies, or (status, body, headers). A body of bytes is sent as it is."""

    def __init__(self) -> None:
        self.script = deque()
        self.requests = []
        self.came = threading.Event()
        """Set when a request came."""
        self.headers = []
        self.models = {"data": [{"id": "model-a"}, {"id": "model-b"}]}
        self.models_status = 200
        self.url = ""
        self.seconds = 0.0
        """Time that an answer takes."""
        self.running = self.most = 0
        """Requests that run, and the largest number of them so far."""
        self.has_extensions = False
        """Whether requests may have more than the published schema."""


@pytest.fixture
def service():
    service, lock = Service(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.answer(service.models_status, service.models, {})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not service.has_extensions:
                walk(SCHEMAS[self.path].validate_python(body))
            service.requests.append(body)
            service.came.set()
            with lock:
                service.running += 1
                service.most = max(service.most, service.running)
            time.sleep(service.seconds)
            with lock:
                service.running -= 1
            service.headers.append(self.headers)
            reply = service.script.popleft()
            self.answer(*(reply if isinstance(reply, tuple) else (200, reply, {})))

        def answer(self, status, body, headers):
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in ({"content-length": str(len(raw))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)
            self.close_connection = "x-drop" in headers

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    service.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield service
    server.shutdown()
    server.server_close()
    assert not service.script


def walk(value):
    """Validate what pydantic left lazy: iterables are checked when they are read."""
    if isinstance(value, Mapping):
        return [walk(item) for item in value.values()] or [value]
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [walk(item) for item in value] or [value]
    return [value]


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"{city}: sunny"


class Asked(ToolEnv):
    """A question; the reward is whether the answer has "sunny"."""

    def __init__(self, messages, tools=(weather,)):
        self.life = Toolset(list(tools))
        super().__init__({"id": "0", "messages": messages}, toolset=self.life, reward=judge)


async def judge(trajectory, task):
    return float("sunny" in trajectory.final_text)


@pytest.fixture
def play(service, monkeypatch):
    """Play an episode on the service: `await play("openai", messages, **options of the engine)`."""

    async def played(name, messages, *, limits=None, sampling=None, tools=(weather,), **options):
        engine = create(name, **{"model": "model-a", "base_url": service.url, "pause": 0.001} | options)
        renderer = Transcript(load_object(ENGINES.get(name).read_turn, "engine"))
        loop = AgentLoop(engine, renderer, limits=limits or Limits(), sampling=sampling)
        try:
            await engine.start()
            return await loop.run(Asked(messages, tools), trajectory_id="t", seed=3)
        finally:
            await engine.close()

    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-anthropic")
    return played
