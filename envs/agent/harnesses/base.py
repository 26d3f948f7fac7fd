"""`Harness`: what each file of this folder defines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentloop.envs.agent.endpoint import Endpoint

PROGRAMS = Path(__file__).parent / "programs"
"""Agents of libraries as programs, each one file."""


@dataclass(slots=True, frozen=True)
class Launch:
    """How to start a program for one episode."""

    arguments: Sequence[str]
    variables: Mapping[str, str]
    """Environment beside PATH, HOME and LANG."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Configuration: texts by their paths below the home directory."""
    stdin: str = ""


@dataclass(slots=True, frozen=True)
class Harness:
    """An agent that others publish."""

    name: str
    program: str
    """Name of its executable."""
    install: str
    """The command that installs the version that the tests run."""
    versions: str
    """The supported versions (a specifier of PEP 440): from that of the tests to the next major one."""
    speaks: str
    """The route of the gateway that it calls."""
    launch: Callable[[str, Path, Endpoint, int | None], Launch]
    """(task, home directory, its model, `compact_at`) -> how to start it.

    At `compact_at` tokens of a conversation the program replaces its history by a summary; None leaves that to it.
    """
    compacts: bool = True
    """Whether it knows `compact_at`."""
    asks_version: Sequence[str] = ("--version",)
    """Arguments with which it prints its version, before any other number."""
