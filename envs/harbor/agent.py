"""`HarborAgent`: an agent program that works on a Harbor task inside the task's box.

data:
  train: agentloop.envs.harbor.env:tasks
  train_options: {folder: ./tasks}
env:
  factory: harbor_agent
  options: {harness: claude-code}                     # or command: [python3, /opt/agent.py]

The program is part of the image, or comes from this machine with `uploads`. Its requests to the model leave the box by
one port to the gateway, even if the box has no network. `agentloop.gateway` records them as trajectories.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from agentloop.envs.agent.command import variables_of
from agentloop.envs.agent.harnesses.base import Harness, Launch
from agentloop.envs.agent.harnesses.running import check_version, harness_named, version_command, write_files
from agentloop.envs.agent.interface.endpoint import AgentResult, Endpoint
from agentloop.envs.agent.program import AgentProgram, SampledBy
from agentloop.envs.harbor.attempt import Attempt, BoxOptions, EarlyAttempt
from agentloop.envs.harbor.env import check_images_of_rows, check_row
from agentloop.envs.harbor.verification.boxes import as_root
from agentloop.errors import EnvError, UserError
from agentloop.process import owned_folders

if TYPE_CHECKING:
    from agentloop.boxes.interface.box import Box
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory

_HOME = PurePosixPath("/tmp/agentloop-home")
"""Home directory of a harness in its box."""
_SHOWN = 2000
"""Maximum characters of a failed program's output in its error."""


class HarborAgent(AgentProgram):
    """Task of a Harbor folder, on which a program works in the task's box until it ends; the tests judge its work.

    The program runs once for each step of the task. If its time runs out (`agent.timeout_sec`) or a limit of the
    episode stops its calls, the tests judge its work so far. A program that fails otherwise fails the episode.
    """

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        harness: str | None = None,
        command: str | Sequence[str] | None = None,
        program: str | None = None,
        compact_at: int | None = None,
        uploads: Mapping[str, str] | None = None,
        sampling: SampledBy = "run",
        host: str = "127.0.0.1",
        advertised: str | None = None,
        provider: str | None = None,
        provider_options: Mapping[str, Any] | None = None,
        images: Mapping[str, str] | None = None,
        network: Literal["none", "public"] | None = None,
        carried: Sequence[str] = (),
    ) -> None:
        """Prepare the task of a row of `agentloop.envs.harbor.env:tasks`.

        A `harness` starts a known program (`agentloop.envs.agent.harnesses`), `program` is its path in the box if it is
        not on PATH there, and at `compact_at` tokens of a conversation it replaces its history with a summary. A
        `command` starts another program, which reads the instruction from stdin and finds its model by the
        variables OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, or those that begin with ANTHROPIC_. `uploads` are
        files and directories of this machine, and their paths in the box. `sampling` is that of
        `agentloop.envs.agent.program`. The gateway listens on `host`; boxes connect to `advertised`. The other
        options are those of `agentloop.envs.harbor.env.HarborEnv`. Raises `UserError`.
        """
        if (harness is None) == (command is None):
            raise UserError("Name the program in env.options: either `harness`, a known program, or `command`.")
        if harness is None and (program is not None or compact_at is not None):
            raise UserError("`program` and `compact_at` in env.options belong to a `harness`: name it, or remove them.")
        super().__init__(
            row,
            toolset=toolset,
            reward=reward,
            agent=self._work,
            sampling=sampling,
            host=host,
            advertised=advertised,
        )
        check_row(row)
        self._harness_in_box = None if harness is None else harness_named(harness, compact_at)
        self._program_in_box = program
        self._command_in_box = command
        self._compact_at = compact_at
        brought = {Path(source).expanduser(): target for source, target in (uploads or {}).items()}
        if missing := [str(source) for source in brought if not source.exists()]:
            raise UserError(f"`uploads` in env.options has {missing[0]!r}, which does not exist: correct its path.")
        options = BoxOptions(
            provider=provider,
            provider_options=provider_options,
            images=images,
            network=network,
            carried=carried,
            uploads=brought,
        )
        self._early = EarlyAttempt(options, row)
        self._attempt: Attempt | None = None

    @classmethod
    def check_rows(cls, rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        check_images_of_rows(rows, options.get("images"))

    def prepare(self) -> None:
        self._early.begin()

    async def _work(self, task: Mapping[str, Any], endpoint: Endpoint) -> AgentResult:
        attempt = self._attempt = await self._early.get()
        reached = await _reached_from(attempt.box, endpoint)
        while True:
            answer, problem = await self._run(attempt, reached)
            await attempt.judge()
            if problem is not None:
                raise problem
            if not await attempt.advance():
                return AgentResult(answer)

    async def _run(self, attempt: Attempt, endpoint: Endpoint) -> tuple[str | None, EnvError | None]:
        """Run the program on the current step; return its output, and an error if it failed."""
        step, box = attempt.step, attempt.box
        if self._harness_in_box is None:
            assert self._command_in_box is not None
            command, launch = self._command_in_box, Launch([], variables_of(endpoint), stdin=step.instruction)
        else:
            program = await _program_of(self._harness_in_box, self._program_in_box, box, attempt.agent_user)
            launch = self._harness_in_box.launch(step.instruction, Path(_HOME), endpoint, self._compact_at)
            launch = replace(launch, variables={"HOME": str(_HOME), **launch.variables})
            await _write_home(box, attempt.agent_user, launch.files)
            command = [program, *launch.arguments]
        result = await box.exec(
            command,
            env=launch.variables,
            user=attempt.agent_user,
            stdin=launch.stdin.encode(),
            timeout=step.agent_timeout,
        )
        problem = None
        if result.return_code and not result.timed_out:
            said = (result.stderr.strip() or result.stdout.strip())[-_SHOWN:]
            problem = EnvError(f"the agent ended with status {result.return_code}: {said}")
        return result.stdout.strip() or None, problem

    async def score(self, trajectory: Trajectory) -> float:
        """Return the reward of the tests, including those of the current step. Raises `EnvError` if there is none."""
        if self._attempt is None:
            raise EnvError("the episode ended before its box started")
        trajectory.metrics["env/seconds_waiting_for_box"] = self._early.seconds_waiting
        own = await self._attempt.reward(trajectory.metrics)
        return own if self.reward_function is None else own + await super().score(trajectory)

    async def close(self) -> None:
        await self._early.stop()


async def _reached_from(box: Box, endpoint: Endpoint) -> Endpoint:
    """Forward a port of the box to the gateway, and return the gateway's address in the box."""
    url = urlsplit(endpoint.base_url)
    assert url.hostname is not None
    assert url.port is not None
    await box.forward(url.port, url.hostname, url.port)
    return replace(endpoint, base_url=f"http://127.0.0.1:{url.port}{url.path}")


async def _program_of(harness: Harness, program: str | None, box: Box, user: str | None) -> str:
    """Return the path of a harness's program in a box. Raises `EnvError` without it, `UserError` for other versions."""
    name = program or harness.program
    found = (await box.exec(["sh", "-c", 'command -v "$0"', name], user=user, timeout=30)).stdout.strip()
    if not found:
        raise EnvError(
            f"the image has no program {name!r} for the harness {harness.name}: install it there ({harness.install}), "
            "or bring it with `uploads` and `program` in env.options"
        )
    output = (await box.exec(version_command(harness, found), user=user, timeout=60)).stdout
    check_version(harness, found, output)
    return found


async def _write_home(box: Box, user: str | None, files: Mapping[str, str]) -> None:
    """Create a home directory for a harness, with its configuration."""
    with owned_folders.temporary("agentloop-home-") as made:
        home = made / "home"
        await asyncio.to_thread(write_files, home, files)
        await as_root(box, f"rm -rf -- {_HOME}; mkdir -p {_HOME}")
        await box.upload(home, str(_HOME))
    owner = shlex.quote(user or (await box.exec("id -u", timeout=10)).stdout.strip())
    await as_root(box, f"chown -R {owner} {_HOME}")
