"""The providers of boxes: their requirements, and how to make one from options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from agentloop.boxes.interface.box import BoxProvider
from agentloop.errors import UserError
from agentloop.registry.options import check_options
from agentloop.registry.registry import Registry

PROVIDERS: Registry[type[BoxProvider]] = Registry(
    "box provider",
    "the provider",
    {
        "docker": "agentloop.boxes.docker.provider:DockerProvider",
        "podman": "agentloop.boxes.docker.podman:PodmanProvider",
        "remote": "agentloop.boxes.remote.provider:RemoteProvider",
        "rootfs": "agentloop.boxes.rootfs.provider:RootfsProvider",
    },
    group="agentloop.boxes",
)


def create(name: str = "rootfs", **options: Any) -> BoxProvider:
    """Return a box provider, not opened yet; `options` are the arguments of its class.

    `name` is a registered provider or your own class, 'module:Class'. Raises `UserError` for an unknown provider
    or option.
    """
    provider = PROVIDERS.get(name)
    known: Mapping[str, Any] = inspect.signature(provider).parameters
    check_options(options, sorted(known), of=f"box provider {name!r}")
    try:
        return provider(**options)
    except TypeError as error:
        raise UserError(f"The box provider {name!r} does not accept these options: {error}.") from error
