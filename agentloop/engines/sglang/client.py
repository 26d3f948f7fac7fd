"""`SglangClient`: the requests of the sglang engine to an SGLang server.

Written against SGLang 0.5.17 (`sglang/srt/entrypoints/http_server.py`): `/generate` takes and returns token ids. Its
log-probabilities are those of the whole distribution at the temperature, before top_p and top_k.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from agentloop.engines.base import EngineDead
from agentloop.engines.sglang.parts import Part, PartStream, read_part
from agentloop.engines.token_listeners import Listener
from agentloop.errors import EngineError, UserError
from agentloop.process.offloading import off_loop

NEEDED = (
    "/generate",
    "/abort_request",
    "/update_weights_from_disk",
    "/update_weights_from_tensor",
    "/model_info",
    "/server_info",
    "/v1/models",
)
KEPT_SECONDS = 2.0
"""Time for which an idle connection stays open. SGLang closes it after 5 s, which can lose a request."""
TESTED = "0.5.17"
MEMORY = ("weights", "kv_cache")
"""SGLang's names of the parts of its memory that it can release."""
_CHARACTERS_PER_TOKEN = 6
_JSON = {"content-type": "application/json"}


class SglangClient:
    """Client of one server, with its key if it has one."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url, self.key = url.rstrip("/"), key
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=KEPT_SECONDS)
        # No limit for a turn: its caller has a limit of its own.
        self._http = httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(None, connect=30),
            limits=limits,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
        )

    async def check(self, model: str) -> int:
        """Check the server and return its context length.

        Raises `UserError` if no server answers, if it lacks an API, or if it serves another model.
        """
        try:
            routes = (await self._get("/openapi.json")).get("paths", {})
            missing = [route for route in NEEDED if route not in routes]
            info = await self._get("/server_info") if "/server_info" in routes else {}
            if missing:
                version = info.get("version", "of an unknown version")
                raise UserError(
                    f"The SGLang server at {self.url} ({version}) lacks routes that the sglang engine uses: "
                    f"{', '.join(missing)}. The tested version is {TESTED}."
                )
            served = str((await self._get("/model_info"))["model_path"])
            (card,) = (await self._get("/v1/models"))["data"]
        except (httpx.HTTPError, ValueError, LookupError) as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403):
                raise UserError(
                    f"The SGLang server at {self.url} refuses the key. Set an environment variable to the value of its "
                    "--api-key, and name that variable in api_key_variable."
                ) from error
            raise UserError(
                f"No SGLang server answers at {self.url} ({type(error).__name__}: {error}). Start one with `python -m "
                "sglang.launch_server --model-path ... --skip-tokenizer-init`, correct `url`, or leave `url` out to "
                "have one started."
            ) from error
        if Path(served).name != Path(model).name:
            raise UserError(
                f"The SGLang server at {self.url} serves {served!r}, but the run trains {model!r}. Start it with "
                f"--model-path {model}, or set `model` to the served one."
            )
        return int(card["max_model_len"])

    async def is_up(self) -> bool:
        """Return whether the model is loaded and warm."""
        try:
            return (await self._http.get("/health", timeout=5)).status_code == 200
        except httpx.HTTPError:
            return False

    async def generate(self, request: Mapping[str, Any], hear: Listener | None = None) -> Part:
        """Sample; `request` is the body of `/generate`, whose answer is a stream if `hear` listens to the tokens.

        Raises `EngineError`, or `EngineDead` if the server is gone.
        """
        size = len(request["input_ids"]) * _CHARACTERS_PER_TOKEN
        if hear is not None:
            request = {**request, "stream": True}
        body = await off_loop(size, lambda: json.dumps(request).encode())
        if hear is not None:
            return await self._stream("/generate", body, PartStream(hear))
        response = await self._post("/generate", body)
        return await off_loop(len(response.content), read_part, response.content)

    async def abort(self, name: str | None = None) -> None:
        """Abort one request, or all. The server aborts all whose names begin with `name`."""
        await self._post("/abort_request", _json({"abort_all": True} if name is None else {"rid": name}))

    async def load_folder(self, folder: Path, version: int) -> None:
        """Load the weights in a folder. Raises `EngineError` with the server's message."""
        order = {"model_path": str(folder), "weight_version": str(version), "flush_cache": False}
        await self._post("/update_weights_from_disk", _json(order))

    async def load_tensors(self, payload: Sequence[str], loader: str, version: int) -> None:
        """Hand each scheduler its part of `payload`, pickled in base64, for the function named `loader`."""
        order = {"serialized_named_tensors": payload, "load_format": loader, "weight_version": str(version)}
        await self._post("/update_weights_from_tensor", _json(order | {"flush_cache": False}))

    async def release_memory(self, parts: Sequence[str]) -> None:
        """Release memory. The server must have no requests."""
        await self._post("/release_memory_occupation", _json({"tags": list(parts)}))

    async def resume_memory(self, parts: Sequence[str]) -> None:
        """Take memory back, with the weights as they were."""
        await self._post("/resume_memory_occupation", _json({"tags": list(parts)}))

    async def close(self) -> None:
        await self._http.aclose()

    async def _get(self, route: str) -> Any:
        response = await self._http.get(route, timeout=30)
        response.raise_for_status()
        return response.json()

    async def _post(self, route: str, body: bytes) -> httpx.Response:
        with self._naming_death():
            response = await self._http.post(route, content=body, headers=_JSON)
        self._check(response, route)
        return response

    async def _stream(self, route: str, body: bytes, part: PartStream) -> Part:
        with self._naming_death():
            async with self._http.stream("POST", route, content=body, headers=_JSON) as response:
                if response.is_error:
                    await response.aread()
                    self._check(response, route)
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        await part.read(line.removeprefix("data: "))
        return await part.end()

    @contextmanager
    def _naming_death(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise EngineDead(f"the SGLang server at {self.url} is gone ({type(error).__name__}: {error})") from error

    @staticmethod
    def _check(response: httpx.Response, route: str) -> None:
        if response.is_error:
            raise EngineError(f"SGLang answered {route} with {response.status_code}: {_reason(response)}")


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data).encode()


def _reason(response: httpx.Response) -> str:
    """Return the message in the body of an error, for which SGLang has several shapes."""
    try:
        data = response.json()
        error = data.get("error", data)
        return str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        return response.text[:500]
