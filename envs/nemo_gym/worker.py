"""Worker of NeMo Gym (`agentloop.envs.workers.script`): serves a resources server of the package, without Ray.

An episode gets the address of the server, which ends with this process.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
import yaml
from nemo_gym.server_utils import ServerClient, SimpleServer


class Worker:
    """One resources server."""

    def __init__(self, server: str, config: Mapping[str, Any]) -> None:
        self.folder = folder_of(server)
        os.chdir(self.folder)  # the package starts it in this folder, as a script
        sys.path.insert(0, str(self.folder))
        kind = server_class(importlib.import_module(f"resources_servers.{server}.app"))
        fields = {**fields_of(self.folder, server), **config}
        needed: Any = kind.model_fields["config"].annotation
        unknown = [name for name in config if name not in needed.model_fields]
        if unknown and needed.model_config.get("extra") != "allow":  # the server would ignore them
            known = ", ".join(needed.model_fields)
            raise ValueError(f"{server} has no {', '.join(unknown)} in its configuration; it has {known}")
        made = needed(**{"host": "127.0.0.1", "port": 0, "entrypoint": "app.py", "name": server, **fields})
        made_server = kind(config=made, server_client=Alone.model_construct())
        self.app = made_server.setup_webserver()
        made_server.setup_exception_middleware(self.app)  # answers then describe errors
        self.serving: asyncio.Task[None] | None = None
        self.address = ""
        self.is_up = asyncio.Lock()

    def rows(self, name: str, size: int | None) -> Iterator[dict[str, Any]]:
        """Yield the items of a file in the folder `data` of the server."""
        file = self.folder / "data" / name
        if not file.is_file():
            known = ", ".join(sorted(each.name for each in file.parent.glob("*.jsonl"))) or "none"
            raise ValueError(f"{self.folder.name} has no {name}; its files: {known}")
        with file.open(encoding="utf-8") as lines:
            yield from map(json.loads, itertools.islice(lines, size))

    async def start(self, episode: str, arguments: Mapping[str, Any]) -> str:
        """Return the address of the server. The first episode starts it."""
        async with self.is_up:
            if self.serving is None:
                listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
                server = uvicorn.Server(uvicorn.Config(self.app, log_level="warning", timeout_keep_alive=600))
                self.serving = asyncio.ensure_future(server.serve(sockets=[listener]))
                while not server.started and not self.serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.01)
                self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if self.serving.done():
            raise RuntimeError("the server does not start; the last lines of the worker say why")
        return self.address


class Alone(ServerClient):
    """Client for a server that runs without other servers."""

    async def request(self, server_name: str, *_: Any, **__: Any) -> Any:
        """Raise an error, because the server calls a model or another server."""
        raise RuntimeError(f"it calls the server {server_name}: start it with the commands of NeMo Gym, and set url")


def folder_of(server: str) -> Path:
    """Return the folder of a server. Raises `ValueError`."""
    import resources_servers

    roots = [Path(each) for each in resources_servers.__path__]
    found = [root / server for root in roots if (root / server / "app.py").is_file()]
    if not found:
        known = sorted({each.parent.name for root in roots for each in root.glob("*/app.py")})
        raise ValueError(f"NeMo Gym has no server {server!r}; it has {', '.join(known)}")
    return found[0]


def server_class(package: Any) -> Any:
    """Return the server class that a module defines: the one without subclasses in it."""
    found = [
        each
        for each in vars(package).values()
        if isinstance(each, type) and issubclass(each, SimpleServer) and each.__module__ == package.__name__
    ]
    last = [each for each in found if not any(each in other.__mro__[1:] for other in found)]
    if len(last) != 1:
        raise ValueError(f"{package.__name__} defines {len(last)} servers, not one")
    return last[0]


def fields_of(folder: Path, server: str) -> dict[str, Any]:
    """Return the fields of a server in the package's configuration."""
    file = folder / "configs" / f"{server}.yaml"
    if not file.is_file():
        return {}
    instances = yaml.safe_load(file.read_text(encoding="utf-8")).values()
    found = (each["resources_servers"] for each in instances if isinstance(each, dict) and "resources_servers" in each)
    return next((dict(each[server]) for each in found if server in each), {})
