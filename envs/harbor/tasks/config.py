"""`TaskConfig`: the content of task.toml, schema version 1.4 and the older ones."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from agentloop.envs.harbor.tasks.machine import EnvironmentConfig, Healthcheck, PhaseNetwork, Seconds, Section, User

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")
_SERVICE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_NOT_IN_STEP_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICE = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[1-9¹²³])", re.IGNORECASE)
MAIN = "main"
"""Compose service in which the agent works."""


class VerifierMode(StrEnum):
    """Where tests run: in the agent's box or in a separate one."""

    SHARED = "shared"
    SEPARATE = "separate"


class RewardStrategy(StrEnum):
    """How a task combines the rewards of its steps."""

    MEAN = "mean"
    FINAL = "final"


class Author(Section):
    """An author of a task."""

    name: str
    email: str | None = None


class Package(Section):
    """The table [task]."""

    name: str
    """org/name."""
    version: str | None = Field(default=None, min_length=1)
    description: str = ""
    authors: list[Author] = Field(default_factory=list)
    keywords: list[str] = Field(default_factory=list)

    @field_validator("name")
    @classmethod
    def _has_org(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or ".." in name:
            raise ValueError("must be org/name, of letters, digits, hyphens, underscores and dots")
        return name


class AgentConfig(PhaseNetwork):
    """The table [agent]."""

    timeout_sec: Seconds | None = None
    user: User = None


class SolutionConfig(Section):
    """The table [solution]."""

    env: dict[str, str] = Field(default_factory=dict)


def _service(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not _SERVICE.fullmatch(value := value.strip()):
        raise ValueError("must be the name of a compose service")
    return value


class Collect(Section):
    """A command that runs after the agent, before artifacts are copied."""

    command: str
    service: Annotated[str, BeforeValidator(_service)] = MAIN
    timeout_sec: Seconds = 60.0
    user: User = None


class VerifierConfig(PhaseNetwork):
    """The table [verifier]."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    user: User = None
    environment_mode: VerifierMode | None = None
    environment: EnvironmentConfig | None = None
    collect: list[Collect] = Field(default_factory=list)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.environment_mode is VerifierMode.SHARED and self.environment is not None:
            raise ValueError("environment_mode = 'shared' has no [verifier.environment]: remove one of them")
        return self

    @property
    def mode(self) -> VerifierMode | None:
        """The mode that this table sets, or None if unspecified."""
        if self.environment_mode is None and self.environment is not None:
            return VerifierMode.SEPARATE
        return self.environment_mode


class Artifact(Section):
    """A path of the agent's box to keep and pass to a separate verifier."""

    source: str
    destination: str | None = None
    exclude: list[str] = Field(default_factory=list)
    service: Annotated[str | None, BeforeValidator(_service)] = None

    @field_validator("source")
    @classmethod
    def _stays_below(cls, source: str) -> str:
        if ".." in PurePosixPath(source).parts:
            raise ValueError("must not contain '..'")
        return source

    @field_validator("destination")
    @classmethod
    def _is_relative(cls, destination: str | None) -> str | None:
        if not destination:
            return None
        path = PurePosixPath(destination)
        if "\\" in destination or path.is_absolute() or not path.parts or ".." in path.parts:
            raise ValueError("must be a relative path without '..' and backslashes")
        if destination.rstrip("/") == "manifest.json":
            raise ValueError("'manifest.json' is the name of the list of artifacts")
        return destination

    @model_validator(mode="after")
    def _is_absolute_in_services(self) -> Self:
        if self.service not in (None, MAIN) and not re.match(r"/|[A-Za-z]:[/\\]", self.source):
            raise ValueError(f"{self.source!r} of the service {self.service!r} must be an absolute path")
        return self


def _artifact(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


Artifacts = list[Annotated[Artifact, BeforeValidator(_artifact)]]


class StepConfig(Section):
    """A table of [[steps]]."""

    name: str
    """Its folder below steps/."""
    agent: AgentConfig = Field(default_factory=AgentConfig)
    verifier: VerifierConfig = Field(default_factory=VerifierConfig)
    min_reward: float | dict[str, float] | None = None
    """Minimum reward, or minimum value of each key, for the next step to begin."""
    healthcheck: Healthcheck | None = None
    artifacts: Artifacts = Field(default_factory=list)

    @field_validator("name")
    @classmethod
    def _is_a_folder_name(cls, name: str) -> str:
        if (
            not name.strip()
            or name.endswith((".", " "))
            or _NOT_IN_STEP_NAMES.search(name)
            or _DEVICE.fullmatch(name.partition(".")[0].rstrip(" "))
            or len(name.encode()) > 255
        ):
            raise ValueError("must be the name of a folder on every system")
        return name


class TaskConfig(Section):
    """The whole file."""

    schema_version: str = "1.4"
    task: Package | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    verifier: VerifierConfig = Field(default_factory=VerifierConfig)
    agent: AgentConfig = Field(default_factory=AgentConfig)
    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    solution: SolutionConfig = Field(default_factory=SolutionConfig)
    source: str | None = None
    multi_step_reward_strategy: RewardStrategy | None = None
    """Strategy; None means `mean`."""
    steps: list[StepConfig] | None = None
    artifacts: Artifacts = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _renames(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "version" in data:
            data = dict(data)
            data.setdefault("schema_version", data.pop("version"))
        return data

    @field_validator("steps")
    @classmethod
    def _names_differ(cls, steps: list[StepConfig] | None) -> list[StepConfig] | None:
        seen = set()
        for step in steps or []:
            key = unicodedata.normalize("NFC", step.name).casefold()
            if key in seen:
                raise ValueError(f"two steps have the name {step.name!r}")
            seen.add(key)
        return steps


def unknown_keys(section: BaseModel, where: str = "") -> list[str]:
    """Return the paths of all unknown keys, such as `agent.timeout`."""
    found = [where + key for key in section.model_extra or {}]
    for name in type(section).model_fields:
        value = getattr(section, name)
        for number, each in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(each, BaseModel):
                place = f"[{number}]" if isinstance(value, list) else ""
                found += unknown_keys(each, f"{where}{name}{place}.")
    return found
