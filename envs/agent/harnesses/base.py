"""`Harness`: a published agent program and how to start it. Each other file of this folder defines one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentloop.envs.agent.interface.endpoint import Endpoint

PROGRAMS = Path(__file__).parent / "programs"
"""Folder of programs that are agents of libraries, one file each."""


@dataclass(slots=True, frozen=True)
class Launch:
    """Command, environment and configuration of a program for one episode."""

    arguments: Sequence[str]
    variables: Mapping[str, str]
    """Environment variables in addition to PATH, HOME and LANG."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Configuration files: content by path below the home directory."""
    stdin: str = ""


@dataclass(slots=True, frozen=True)
class Harness:
    """A published agent program."""

    name: str
    program: str
    """Name of its executable."""
    install: str
    """Command that installs the tested version."""
    versions: str
    """Supported versions (a PEP 440 specifier): from the tested version to the next major one."""
    speaks: str
    """Route of the gateway that the program calls."""
    launch: Callable[[str, Path, Endpoint, int | None], Launch]
    """Function (task, home directory, model, `compact_at`) -> how to start the program.

    When a conversation has `compact_at` tokens, the program replaces its history with a summary. None means the
    program's own default.
    """
    compacts: bool = True
    """Whether the program supports `compact_at`."""
    version_arguments: Sequence[str] = ("--version",)
    """Arguments that make the program print its version, before any other number."""
