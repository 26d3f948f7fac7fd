"""Run a harness for one episode.

    env:
      factory: agent
      options: {harness: claude-code, check: [python, -m, pytest, -q]}

The program starts with fresh configuration, in a home and a working directory of its own, and sees no other variables
of the run than PATH and LANG. This keeps episodes apart; it does not confine the program, which can read and write what
its user can. Its task is the text of the row's messages. `files` of the row ({path: text}) are in its working directory
when it starts.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from agentloop.envs.agent.endpoint import AgentResult, Endpoint
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
from agentloop.envs.agent.process import run_process
from agentloop.errors import EnvError, UserError
from agentloop.types.messages import text_of

HARNESSES: dict[str, Harness] = {
    module.HARNESS.name: module.HARNESS
    for module in (claude_code, codex, langgraph, mini_swe_agent, openai_agents, opencode, pi, qwen_code)
}

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_checked: set[tuple[str, str]] = set()
"""Harnesses and programs whose version is supported."""


class HarnessRun:
    """A harness, the path of its program, the command that checks its work, and the tokens at which it compacts.

    Raises `UserError` if the harness is unknown, its program is not there, or it cannot compact at a given size.
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
        found = shutil.which(program or self.harness.program)
        if found is None:
            raise UserError(
                f"The harness {name} needs the program {program or self.harness.program!r}, which is not there: "
                f"{self.harness.install}, or set `program` in env.options to its path."
            )
        self._program = str(Path(found).absolute())

    async def play(self, task: Mapping[str, Any], endpoint: Endpoint) -> AgentResult:
        """Run the program to its end; what it prints is the answer. Cancelling kills it with its children.

        Raises `EnvError` if it fails, and `UserError` if its version is not supported.
        """
        with tempfile.TemporaryDirectory(prefix="agentloop-agent-", ignore_cleanup_errors=True) as made:
            home, work = Path(made, "home"), Path(made, "work")
            launch = self.harness.launch(_text_of(task), home, endpoint, self._compact_at)
            write_files(home, launch.files)
            write_files(work, task.get("files") or {})
            environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
            environment["HOME"] = str(home)
            await self._check_version(environment)
            command = [self._program, *launch.arguments]
            output = await run_process(
                command, environment | dict(launch.variables), stdin=launch.stdin.encode(), folder=work
            )
            reward = None if self._check is None else await self._judge(self._check, environment, work)
            return AgentResult(output.decode(errors="replace").strip() or None, reward)

    async def _check_version(self, environment: Mapping[str, str]) -> None:
        if (self.harness.name, self._program) in _checked:
            return
        try:
            told = await run_process(asking_version(self.harness, self._program), environment)
        except EnvError as error:
            told = str(error).rpartition("\n")[2].encode()
        check_version(self.harness, self._program, told.decode(errors="replace"))
        _checked.add((self.harness.name, self._program))

    async def _judge(self, check: Sequence[str], environment: Mapping[str, str], work: Path) -> float:
        try:
            await run_process(check, environment, folder=work)
        except EnvError:
            return 0.0
        return 1.0


def asking_version(harness: Harness, program: str) -> list[str]:
    """Return the command that prints a program's version. Some programs print it on stderr."""
    return ["sh", "-c", 'exec "$0" "$@" 2>&1', program, *harness.asks_version]


def check_version(harness: Harness, program: str, told: str) -> None:
    """Raise `UserError` unless what a program told is a supported version."""
    version = _VERSION.search(told)
    if version is None or version[0] not in SpecifierSet(harness.versions):
        raise UserError(
            f"{program} is {told.strip()[:80]!r}, and the harness {harness.name} starts {harness.versions}: "
            f"{harness.install}, or start your version with `command`."
        )


def harness_named(name: str, compact_at: int | None) -> Harness:
    """Return a harness. Raises `UserError` if it is unknown, or cannot compact at a given size."""
    if name not in HARNESSES:
        raise UserError(
            f"{name!r} is not a harness. Choose one of {', '.join(HARNESSES)}. To run another program, set `command` "
            "instead of `harness`."
        )
    if compact_at is not None and not HARNESSES[name].compacts:
        raise UserError(f"The harness {name} does not compact its history: remove `compact_at` from env.options.")
    return HARNESSES[name]


def _text_of(task: Mapping[str, Any]) -> str:
    return "\n\n".join(filter(None, (text_of(message["content"]) for message in task.get("messages") or ())))


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts by their paths below a folder. Raises `UserError` for a path outside of it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise UserError(f"The file {name!r} of the task is outside its working directory: use a relative path.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
