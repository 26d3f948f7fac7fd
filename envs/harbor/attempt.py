"""`Attempt`: one attempt at a task, from the start of its box to the rewards of its steps."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from agentloop.boxes.interface.box import Box, BoxProvider
from agentloop.boxes.interface.spec import Network
from agentloop.boxes.prepared import PreparedBox
from agentloop.boxes.shared import provider_of
from agentloop.envs.harbor.tasks.config import MAIN
from agentloop.envs.harbor.tasks.task import HarborTask, TaskStep
from agentloop.envs.harbor.verification.boxes import (
    AGENT,
    TESTS,
    VERIFIER,
    as_root,
    check_image_names,
    emptied,
    image_of,
    make_folders,
    network_of,
    spec_of,
    user_of,
    wait_until_healthy,
)
from agentloop.envs.harbor.verification.rewards import Rewards, VerifierError, combined, reaches
from agentloop.envs.harbor.verification.verifier import verify
from agentloop.errors import EnvError, UserError
from agentloop.process.group_scope import current_group

NetworkChoice = Literal["none", "public"]
_SETUP_SECONDS = 600.0


@dataclass(slots=True, frozen=True, kw_only=True)
class BoxOptions:
    """Options of env.options that configure the boxes of tasks."""

    provider: str | None = None
    """Starts the boxes; by default docker if an engine answers, else rootfs."""
    provider_options: Mapping[str, Any] | None = None
    images: Mapping[str, str] | None = None
    """Replaces images of tasks (`image_of`)."""
    network: NetworkChoice | None = None
    """Network access that replaces the tasks' own."""
    carried: Sequence[str] = ()
    """With these paths, tests run in new boxes that get only them."""

    uploads: Mapping[Path, str] = field(default_factory=dict)
    """Files and directories of this machine that every box gets, and their paths in the box."""

    def __post_init__(self) -> None:
        """Raise `UserError` for values that no task can have."""
        is_list = not isinstance(self.carried, str) and all(each.startswith("/") for each in self.carried)
        if not is_list:
            raise UserError(
                "`carried` in env.options must be a list of absolute paths of the box, such as [/app], not "
                f"{self.carried!r}."
            )
        if self.network not in (None, *get_args(NetworkChoice)):
            raise UserError(
                f"`network` in env.options is {' or '.join(get_args(NetworkChoice))}, not {self.network!r}."
            )
        check_image_names(self.images or {})

    async def start(self, row: Mapping[str, Any]) -> Attempt:
        """Return an attempt at the task of a row, whose box is ready. Raises `UserError`, `EnvError` and `BoxError`."""
        task = await asyncio.to_thread(HarborTask.load, row["task"])
        provider = await provider_of(self.provider, self.provider_options)
        attempt = Attempt(
            task, provider, images=self.images, network=self.network, carried=tuple(self.carried), uploads=self.uploads
        )
        await attempt.start()
        return attempt


class Attempt:
    """The box of a task, its steps in order, and their rewards.

    attempt = Attempt(task, provider)
    await attempt.start()
    while True:
        ...                              # work in attempt.box on attempt.step
        await attempt.judge()
        if not await attempt.advance():
            break
    await attempt.stop()
    print(attempt.rewards)
    """

    def __init__(
        self,
        task: HarborTask,
        provider: BoxProvider,
        *,
        images: Mapping[str, str] | None = None,
        network: Literal["none", "public"] | None = None,
        carried: tuple[str, ...] = (),
        uploads: Mapping[Path, str] | None = None,
    ) -> None:
        """`images` are those of `image_of`. `network` replaces the task's network access. `uploads` go into the box.

        With `carried` the tests of every step run in a new box that gets these paths of the agent's box: nothing else
        that the agent did can affect them. Raises `UserError` for a task that no box can run.
        """
        _check(task)
        if network is None:
            _check_networks(task)
        self.task = task
        self._provider = provider
        self._images = images or {}
        self._network = None if network is None else Network(mode=network)
        self._carried = carried
        self._uploads = uploads or {}
        self._number = 0
        self._box: Box | None = None
        self._judged: list[Rewards] = []
        self.seconds_starting = 0.0
        """Time until the box was ready."""

    @property
    def step(self) -> TaskStep:
        """The current step."""
        return self.task.steps[self._number]

    @property
    def box(self) -> Box:
        """The agent's box."""
        assert self._box is not None, "call start first"
        return self._box

    @property
    def agent_user(self) -> str | None:
        """User of the agent in the current step; None means the image's."""
        return user_of(self.step.agent_user)

    async def start(self) -> None:
        """Start the box and prepare the first step. Raises `EnvError` if the task cannot run now.

        Episodes of a group get copies of one box, if preparing it takes more than a start.
        """
        begin = time.monotonic()
        group = current_group()
        if group is None or group.episodes == 1 or not await asyncio.to_thread(self._has_preparation):
            self._box = await self._ready_box()
        else:
            key = ("box of a task", self.task.folder)
            shared = group.share(key, lambda: PreparedBox(self._ready_box, takers=group.episodes))
            self._box = await shared.take()
        self.seconds_starting = time.monotonic() - begin

    def _has_preparation(self) -> bool:
        step = self.step
        checks = self.task.config.environment.healthcheck or (step.config.name and step.config.healthcheck)
        return bool(self._uploads or checks or (step.config.name and (step.folder / "workdir").is_dir()))

    async def _ready_box(self) -> Box:
        """Return a new box that is ready for the first step."""
        environment = self.task.config.environment
        box = await self._start(environment.docker_image, self.task.environment)
        try:
            await make_folders(box)
            await wait_until_healthy(box, environment.healthcheck)
            await self._prepare(box)
            for source, target in self._uploads.items():
                await box.upload(source, target)
        except BaseException:
            await box.stop()
            raise
        return box

    async def _start(self, image: str | None, folder: Path, *, is_verifier: bool = False) -> Box:
        where = self.step.verifier_box if is_verifier else None
        environment = self.task.config.environment if where is None else where.environment
        try:
            spec = spec_of(environment, image_of(image, folder, self._images), network=self._network)
            return await self._provider.start(spec)
        except UserError as error:  # of this task alone; others may run
            raise EnvError(f"the box of {self.task.name} cannot be started: {error}") from error

    async def _prepare(self, box: Box) -> None:
        """Upload the files of the current step, and run its setup.sh and its health check."""
        step = self.step
        if not step.config.name:
            return
        files = step.folder / "workdir"
        if await asyncio.to_thread(files.is_dir):
            workdir = (await box.exec("pwd", timeout=10)).stdout.strip() or "/"
            await box.upload(files, workdir)
            if await asyncio.to_thread((files / "setup.sh").is_file):
                script = f"$(command -v bash || echo sh) {shlex.quote(workdir.rstrip('/') + '/setup.sh')}"
                result = await box.exec(script, user=self.agent_user, timeout=_SETUP_SECONDS)
                if result.return_code != 0:
                    raise EnvError(
                        f"setup.sh of the step {step.config.name} of {self.task.name} failed: {result.stderr[-300:]}"
                    )
        await wait_until_healthy(box, step.config.healthcheck, self.agent_user)

    async def judge(self, logs: Path | None = None) -> Rewards:
        """Run the tests of the current step. Raises `VerifierError` without a reward, `BoxError` if a box fails."""
        where = self.step.verifier_box
        start = None
        if where is not None:
            image, folder = where.image, where.folder
            start = lambda: self._start(image, folder, is_verifier=True)  # noqa: E731
        elif self._carried:
            environment = self.task.config.environment
            start = lambda: self._start(environment.docker_image, self.task.environment)  # noqa: E731
        found = await verify(self.step, self.box, start, carried=self._carried, logs=logs)
        self._judged.append(found)
        return found

    async def advance(self) -> bool:
        """Begin the next step, and return False if there is none or the rewards so far do not allow it."""
        assert len(self._judged) == self._number + 1, "judge each step once"
        is_last = self._number + 1 == len(self.task.steps)
        if is_last or not reaches(self._judged[-1], self.step.config.min_reward):
            return False
        # The next step may see neither the tests of this step nor their output.
        await as_root(self.box, f"rm -rf -- {TESTS}; {emptied(VERIFIER, AGENT)}")
        self._number += 1
        await self._prepare(self.box)
        return True

    @property
    def is_judged(self) -> bool:
        """Whether the current step has its rewards."""
        return len(self._judged) > self._number

    @property
    def rewards(self) -> Rewards:
        """The rewards of the task, combined from its steps. Raises `VerifierError` if none was judged."""
        if not self._judged:
            raise VerifierError(f"no tests of {self.task.name} have run")
        return combined(self._judged, self.task.config.multi_step_reward_strategy)

    async def reward(self, metrics: dict[str, float]) -> float:
        """Return the reward and add metrics; run the tests of the current step first if they have not run.

        Raises `VerifierError` without a reward, and `BoxError` if a box fails.
        """
        begin = time.monotonic()
        if not self.is_judged:
            await self.judge()
        rewards = self.rewards
        metrics |= {f"reward/{name}": value for name, value in rewards.items() if name != "reward"}
        metrics["env/seconds_starting_box"] = self.seconds_starting
        metrics["env/seconds_testing"] = time.monotonic() - begin
        return reward_of(rewards)

    async def stop(self) -> None:
        """End the box. Later calls have no effect."""
        if self._box is not None:
            await self._box.stop()


class EarlyAttempt:
    """An attempt that can start before its episode begins, while other episodes play."""

    def __init__(self, options: BoxOptions, row: Mapping[str, Any]) -> None:
        self._options = options
        self._row = row
        self._starting: asyncio.Task[Attempt] | None = None
        self.seconds_waiting = 0.0
        """Time that the episode waited for its box."""

    def begin(self) -> None:
        """Start the box in the background."""
        self._starting = asyncio.create_task(self._options.start(self._row))

    async def get(self) -> Attempt:
        """Return the attempt when its box is ready. Raises what `BoxOptions.start` raises."""
        since = time.monotonic()
        if self._starting is None:
            self.begin()
        assert self._starting is not None
        try:
            return await asyncio.shield(self._starting)
        finally:
            self.seconds_waiting = time.monotonic() - since

    async def stop(self) -> None:
        """End the box, even while it is starting."""
        if self._starting is None:
            return
        self._starting.cancel()
        await asyncio.wait([self._starting])
        if not self._starting.cancelled() and self._starting.exception() is None:
            await self._starting.result().stop()


def reward_of(rewards: Rewards) -> float:
    """Return the number named `reward`, or the only one. Raises `VerifierError` if neither exists."""
    if "reward" in rewards:
        return rewards["reward"]
    if len(rewards) == 1:
        return next(iter(rewards.values()))
    raise VerifierError(f"the tests wrote {sorted(rewards)}, and none of them is `reward`")


def _check(task: HarborTask) -> None:
    """Raise `UserError` if the task needs features that no box has."""
    config = task.config
    collected = [*config.verifier.collect, *(each for step in task.steps for each in step.config.verifier.collect)]
    artifacts = [each.service for step in task.steps for each in step.artifacts]
    services = {*(each.service for each in collected), *artifacts} - {None, MAIN}
    if services:
        raise UserError(
            f"{task.folder} uses the compose services {sorted(map(str, services))}, which boxes do not have."
        )
    if config.environment.mcp_servers:
        raise UserError(
            f"{task.folder} needs MCP servers, which boxes do not start: remove mcp_servers from task.toml."
        )


def _check_networks(task: HarborTask) -> None:
    """Raise `UserError` if agent or tests ask for another network than that of their box."""
    for step in task.steps:
        separate = step.verifier_box
        verifier = task.config.environment if separate is None else separate.environment
        for phase, box, tables in (
            ("agent", task.config.environment, (step.config.agent, task.config.agent)),
            ("verifier", verifier, (step.config.verifier, task.config.verifier)),
        ):
            own = next((network_of(table) for table in tables if table.network_mode is not None), network_of(box))
            if own != network_of(box):
                raise UserError(
                    f"{task.folder} gives the {phase} another network than its box, and the network of a box cannot "
                    "change: make network_mode and allowed_hosts equal in task.toml, or replace them all with the "
                    "option `network`, none or public."
                )
