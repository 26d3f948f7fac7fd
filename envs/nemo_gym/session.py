"""`Session`: the requests of one episode to a resources server, which identifies it by its cookies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.envs.servers import answering, client_of, json_of
from agentloop.errors import EnvError


class Session:
    """HTTP requests with shared cookies. All failures raise `EnvError`."""

    def __init__(self, url: str, *, seconds: float | None, key: str | None = None) -> None:
        """Prepare requests to `url`. Each may take `seconds`, and `key` authorizes it."""
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else None
        self._client = client_of(self.url, seconds=seconds, headers=headers)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def text(self, path: str, body: Mapping[str, Any]) -> str:
        """Post `body`. Return the text of the answer, even of an error."""
        with answering(self.url, path):
            return (await self._client.post(path, json=body)).text

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Post `body`, or send a GET request without one. Return the answer, a JSON object."""
        with answering(self.url, path):
            response = await (self._client.get(path) if body is None else self._client.post(path, json=body))
        found = json_of(response)
        if not isinstance(found, dict):
            raise EnvError(f"the server {self.url} answered {path} with {found!r:.200}, which is not a JSON object")
        return found

    async def paths(self) -> frozenset[str]:
        """Return the paths that the server lists."""
        return frozenset((await self.ask("/openapi.json")).get("paths") or ())
