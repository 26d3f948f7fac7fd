"""Run a harness for one episode.

    env:
      factory: agent
      options: {harness: claude-code, check: [python, -m, pytest, -q]}

The program starts with fresh configuration and new home and working directories, and sees no variables of the run
except PATH and LANG. This keeps episodes apart, but it does not confine the program, which can read and write
everything that its user can. Its task is the text of the row's messages. The row's `files` ({path: text}) are written
to its working directory first.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from agentloop.envs.agent.harnesses import (
    claude_code,
    codex,
    langgraph,
    mini_swe_agent,
    openai_agents,
    opencode,
    pi,
    qwen_code,
)  # fmt: skip
from agentloop.envs.agent.harnesses.base import Harness
from agentloop.envs.agent.interface.endpoint import AgentResult, Endpoint
from agentloop.envs.agent.interface.process import run_process
from agentloop.errors import EnvError, UserError
from agentloop.process import owned_folders
from agentloop.types.messages import text_of

HARNESSES: dict[str, Harness] = {
    module.HARNESS.name: module.HARNESS
    for module in (claude_code, codex, langgraph, mini_swe_agent, openai_agents, opencode, pi, qwen_code)
}

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_checked: set[tuple[str, str]] = set()
"""Pairs of a harness and a program whose version was checked."""


class HarnessRun:
    """A harness, the path of its program, the command that checks its work, and the tokens at which it compacts.

    Raises `UserError` if the harness is unknown, its program does not exist, or it does not support `compact_at`.
    """

    def __init__(
        self,
        name: str,
        program: str | None = None,
        check: Sequence[str] | None = None,
        compact_at: int | None = None,
    ) -> None:
        self.harness = harness_named(name, compact_at)
        self._check = check
        self._compact_at = compact_at
        self.reward: float | None = None
        """Result of the check, also for a program that failed, as many do when a limit refuses their request."""
        found = shutil.which(program or self.harness.program)
        if found is None:
            raise UserError(
                f"The harness {name} needs the program {program or self.harness.program!r}, which does not exist: "
                f"{self.harness.install}, or set `program` in env.options to its path."
            )
        self._program = str(Path(found).absolute())

    async def play(self, task: Mapping[str, Any], endpoint: Endpoint) -> AgentResult:
        """Run the program to its end. Its output is the answer. Cancelling kills it and its children.

        Raises `EnvError` if it fails, and `UserError` if its version is not supported.
        """
        with owned_folders.temporary("agentloop-agent-") as made:
            home, work = made / "home", made / "work"
            launch = self.harness.launch(_text_of(task), home, endpoint, self._compact_at)
            write_files(home, launch.files)
            write_files(work, task.get("files") or {})
            environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
            environment["HOME"] = str(home)
            await self._check_version(environment)
            command = [self._program, *launch.arguments]
            variables = environment | dict(launch.variables)
            try:
                output = await run_process(
                    command, variables, stdin=launch.stdin.encode(), folder=work, option="program"
                )
            except EnvError:
                await self._judge(environment, work)
                raise
            await self._judge(environment, work)
            return AgentResult(output.decode(errors="replace").strip() or None, self.reward)

    async def _check_version(self, environment: Mapping[str, str]) -> None:
        if (self.harness.name, self._program) in _checked:
            return
        try:
            output = await run_process(version_command(self.harness, self._program), environment)
        except EnvError as error:
            output = str(error).rpartition("\n")[2].encode()
        check_version(self.harness, self._program, output.decode(errors="replace"))
        _checked.add((self.harness.name, self._program))

    async def _judge(self, environment: Mapping[str, str], work: Path) -> None:
        if self._check is None:
            return
        self.reward = 0.0
        with contextlib.suppress(EnvError):
            await run_process(self._check, environment, folder=work, option="check")
            self.reward = 1.0


def version_command(harness: Harness, program: str) -> list[str]:
    """Return the command that prints a program's version. Some programs print it on stderr."""
    return ["sh", "-c", 'exec "$0" "$@" 2>&1', program, *harness.version_arguments]


def check_version(harness: Harness, program: str, output: str) -> None:
    """Raise `UserError` unless the output of a program contains a supported version."""
    version = _VERSION.search(output)
    if version is None or version[0] not in SpecifierSet(harness.versions):
        raise UserError(
            f"{program} is {output.strip()[:80]!r}, but the harness {harness.name} supports {harness.versions}: "
            f"{harness.install}, or start your version with `command`."
        )


def harness_named(name: str, compact_at: int | None) -> Harness:
    """Return a harness. Raises `UserError` if it is unknown, or `compact_at` is below 1 or not supported."""
    if name not in HARNESSES:
        raise UserError(
            f"{name!r} is not a harness. Choose one of {', '.join(HARNESSES)}. To run another program, set `command` "
            "instead of `harness`."
        )
    if compact_at is not None and compact_at < 1:
        raise UserError(f"`compact_at` in env.options is {compact_at}: set a number of tokens above 0, or remove it.")
    if compact_at is not None and not HARNESSES[name].compacts:
        raise UserError(f"The harness {name} does not compact its history: remove `compact_at` from env.options.")
    return HARNESSES[name]


def _text_of(task: Mapping[str, Any]) -> str:
    return "\n\n".join(filter(None, (text_of(message["content"]) for message in task.get("messages") or ())))


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, given as text by path, below a folder. Raises `UserError` for a path outside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise UserError(f"The file {name!r} of the task is outside its working directory: use a relative path.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
