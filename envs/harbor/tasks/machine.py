"""The tables of task.toml that describe a machine: image, resources, network, health."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agentloop.boxes.interface.hosts import normal_host

_TOPOLOGY = re.compile(r"[1-9]\d*(x[1-9]\d*)+")
User = str | int | None
Seconds = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A table of task.toml. Unknown keys are kept; the reader of the task warns about them."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)


class NetworkMode(StrEnum):
    """Network access of a box."""

    NO_NETWORK = "no-network"
    PUBLIC = "public"
    ALLOWLIST = "allowlist"


class PhaseNetwork(Section):
    """The network of a phase; None means the environment's."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    """Host names, addresses and ranges of an allowlist."""

    @field_validator("allowed_hosts")
    @classmethod
    def _are_hosts(cls, hosts: list[str] | None) -> list[str] | None:
        return hosts and [normal_host(each) for each in hosts]

    @model_validator(mode="after")
    def _lists_for_allowlists(self) -> Self:
        named = self.allowed_hosts is not None if self.network_mode is None else bool(self.allowed_hosts)
        if named and self.network_mode is not NetworkMode.ALLOWLIST:
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        return self


class Healthcheck(Section):
    """A command that succeeds when the box is ready, as in a Dockerfile."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class Tpu(Section):
    """A slice of TPUs."""

    type: str = Field(min_length=1)
    topology: str

    @field_validator("topology")
    @classmethod
    def _has_sizes(cls, topology: str) -> str:
        if not _TOPOLOGY.fullmatch(topology.strip()):
            raise ValueError("must be sizes with 'x' between them, such as 2x4")
        return topology.strip()


class McpServer(Section):
    """A server of tools that runs beside the box or in it."""

    name: str
    transport: Literal["stdio", "sse", "streamable-http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    headers: dict[str, str] = Field(default_factory=dict)

    @field_validator("transport", mode="before")
    @classmethod
    def _old_name(cls, transport: Any) -> Any:
        return "streamable-http" if transport == "http" else transport

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.transport == "stdio" and (not self.command or self.headers):
            raise ValueError("transport = 'stdio' needs a command, and has no headers")
        if self.transport != "stdio" and not self.url:
            raise ValueError(f"transport = {self.transport!r} needs a url")
        return self


class EnvironmentConfig(PhaseNetwork):
    """The table [environment]."""

    network_mode: NetworkMode = NetworkMode.PUBLIC
    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    """A finished image; None builds environment/Dockerfile."""
    os: Literal["linux", "windows"] = "linux"
    cpus: int | float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: Tpu | None = None
    mcp_servers: list[McpServer] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None

    @field_validator("cpus")
    @classmethod
    def _are_finite(cls, cpus: int | float | None) -> int | float | None:
        if cpus is not None and not math.isfinite(cpus):
            raise ValueError("must be finite")
        return int(cpus) if isinstance(cpus, float) and cpus.is_integer() else cpus

    @field_validator("os", mode="before")
    @classmethod
    def _lower(cls, os: Any) -> Any:
        return os.lower() if isinstance(os, str) else os

    @model_validator(mode="before")
    @classmethod
    def _old_sizes(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        data = dict(data)
        for old in ("memory", "storage"):
            value = data.pop(old, None)
            if isinstance(value, str):
                size = _megabytes(value)
                if data.setdefault(f"{old}_mb", size) != size:
                    raise ValueError(f"{old} and {old}_mb differ: remove {old}")
        allows = data.pop("allow_internet", None)
        if allows is not None and "network_mode" not in data and data.get("allowed_hosts") is None:
            data["network_mode"] = NetworkMode.PUBLIC if _boolean(allows) else NetworkMode.NO_NETWORK
        return data


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("allow_internet must be true or false")
    return value


def _megabytes(size: str) -> int:
    text = size.strip().upper()
    scale = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}.get(text[-1:])
    if scale is None:
        raise ValueError(f"the size {size!r} must end in G, M or K, as in '2G'")
    return int(float(text[:-1]) * scale)
