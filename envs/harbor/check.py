"""Check tasks: whether they can be read and run, the solution gets 1, and doing nothing gets 0."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agentloop.boxes.interface.box import BoxProvider
from agentloop.envs.harbor.attempt import Attempt, reward_of
from agentloop.envs.harbor.tasks.files import upload_selected
from agentloop.envs.harbor.tasks.task import HarborTask
from agentloop.envs.harbor.tasks.variables import resolved
from agentloop.envs.harbor.verification.boxes import SOLUTION, as_root, check_image_names, check_images_used
from agentloop.errors import AgentLoopError, EnvError, UserError

_SECONDS = 600.0
"""Time limit of a solution if its task sets none."""
_TEXT = 300


@dataclass(slots=True)
class Finding:
    """The result of checking one task."""

    folder: Path
    problems: list[str] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    """`solution` and `nothing`: the rewards of both."""
    seconds: float = 0.0


async def check_tasks(
    folders: Sequence[Path],
    provider: BoxProvider,
    *,
    images: Mapping[str, str] | None = None,
    network: Literal["none", "public"] | None = None,
    concurrent: int = 4,
) -> AsyncIterator[Finding]:
    """Yield a finding for each task as it is completed; check `concurrent` tasks at once."""
    room = asyncio.Semaphore(concurrent)

    async def found(folder: Path) -> Finding:
        async with room:
            return await check_task(folder, provider, images=images, network=network)

    checks = [asyncio.ensure_future(found(folder)) for folder in folders]
    try:
        for done in asyncio.as_completed(checks):
            yield await done
    finally:  # the caller is about to close the provider
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)


def check_images(folders: Sequence[Path], images: Mapping[str, str]) -> None:
    """Raise `UserError` for an image to replace that no task has. A task that cannot be read could have any."""
    check_image_names(images)
    if set(images) <= {"*"}:  # fits all tasks, so none has to be read
        return
    try:
        tasks = [HarborTask.load(folder) for folder in folders]
    except UserError:  # a finding of the check
        return
    check_images_used(images, tasks)


async def check_task(
    folder: Path,
    provider: BoxProvider,
    *,
    images: Mapping[str, str] | None = None,
    network: Literal["none", "public"] | None = None,
) -> Finding:
    """Read a task, and run it with its solution and with nothing."""
    finding, begin = Finding(folder), time.monotonic()
    try:
        task = await asyncio.to_thread(HarborTask.load, folder)
    except AgentLoopError as error:
        finding.problems.append(str(error))
        return finding
    for name, expected in (("solution", 1.0), ("nothing", 0.0)):
        try:
            attempt = Attempt(task, provider, images=images, network=network)
            reward = await _play(attempt, with_solution=name == "solution")
        except AgentLoopError as error:
            finding.problems.append(f"With {_PLAYED[name]}: {error}")
            continue
        finding.rewards[name] = reward
        if reward != expected:
            finding.problems.append(f"With {_PLAYED[name]} the reward is {reward:g} and not {expected:g}.")
    finding.seconds = time.monotonic() - begin
    return finding


_PLAYED = {"solution": "the solution", "nothing": "nothing done"}


async def _play(attempt: Attempt, *, with_solution: bool) -> float:
    try:
        await attempt.start()
        while True:
            if with_solution:
                await run_solution(attempt)
            await attempt.judge()
            if not await attempt.advance():
                return reward_of(attempt.rewards)
    finally:
        await attempt.stop()


async def run_solution(attempt: Attempt) -> None:
    """Run the solution of the current step. Raises `EnvError` if there is none, or it fails."""
    step, box = attempt.step, attempt.box
    if step.solution is None:
        raise EnvError(f"{step.folder} has no solution/solve.sh")
    await as_root(box, f"rm -rf -- {SOLUTION}; mkdir -p {SOLUTION}")
    await upload_selected(step.task.folder, step.solution, box, SOLUTION)
    await as_root(box, f"chmod -R a+rX {SOLUTION}; chmod a+x {SOLUTION}/solve.sh")
    result = await box.exec(
        f"{SOLUTION}/solve.sh",
        env=resolved(step.task.config.solution.env),
        user=attempt.agent_user,
        timeout=step.agent_timeout or _SECONDS,
    )
    if result.timed_out:
        raise EnvError("the solution took longer than the task allows")
    if result.return_code != 0:
        text = (result.stderr or result.stdout)[-_TEXT:] or "it printed nothing"
        raise EnvError(f"the solution failed ({result.return_code}): {text}")
