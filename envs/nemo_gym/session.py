"""`Session`: the requests of one episode to a resources server, which knows it by its cookies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.envs.servers import answering, client_of, json_of
from agentloop.errors import EnvError


class Session:
    """HTTP requests that keep their cookies. All failures raise `EnvError`."""

    def __init__(self, url: str, *, seconds: float | None, key: str | None = None) -> None:
        """Prepare requests to `url`, each of which may take `seconds`. `key` authorizes them."""
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else None
        self._client = client_of(self.url, seconds=seconds, headers=headers)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def text(self, path: str, body: Mapping[str, Any]) -> str:
        """Post `body`; return the text of the answer, also that of an error."""
        with answering(self.url, path):
            return (await self._client.post(path, json=body)).text

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Post `body`, or get without one; return the answer, a JSON object."""
        with answering(self.url, path):
            response = await (self._client.get(path) if body is None else self._client.post(path, json=body))
        found = json_of(response)
        if not isinstance(found, dict):
            raise EnvError(f"the server {self.url} answered {path} with no JSON object, but {found!r:.200}")
        return found

    async def paths(self) -> frozenset[str]:
        """Return the paths that the server says it serves."""
        return frozenset((await self.ask("/openapi.json")).get("paths") or ())
