"""Judge the work in a box: which tests run, where, and how they are protected from the agent.

The tests of most tasks run in the agent's own box. Before they are uploaded, all processes of the agent are killed, and
its files at /tests and any reward it wrote are removed; a check from outside the box confirms this. When the tests have
ended, all processes are killed again before the reward is read, so nothing can write it later. An agent that is
root in its box can replace the programs that tests use. `in_fresh_box` and separate verifiers are safe from that.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentloop.boxes.interface.box import Box, BoxError
from agentloop.envs.harbor.tasks.config import MAIN, Artifact
from agentloop.envs.harbor.tasks.files import upload_selected
from agentloop.envs.harbor.tasks.task import TaskStep
from agentloop.envs.harbor.tasks.variables import resolved
from agentloop.envs.harbor.verification.boxes import (
    ARTIFACTS,
    TESTS,
    VERIFIER,
    as_root,
    emptied,
    make_folders,
    user_of,
    without_excluded,
)
from agentloop.envs.harbor.verification.rewards import Rewards, VerifierError, read_rewards
from agentloop.process import owned_folders

_logger = logging.getLogger(__name__)
_LOG_BYTES = 256 << 20
"""Maximum bytes of /logs/verifier."""
_SHOWN_BYTES = 300
"""Maximum bytes that an error shows of what tests printed."""
_OUTPUT = "test-stdout.txt"
_REWARD_FILES = ("reward.txt", "reward.json")


async def verify(
    step: TaskStep,
    box: Box,
    start: Callable[[], Awaitable[Box]] | None = None,
    *,
    carried: tuple[str, ...] = (),
    logs: Path | None = None,
) -> Rewards:
    """Run the tests of a step on the agent's work in `box`, and return the rewards that they write.

    With `start` the tests run in the box that it starts, which gets the artifacts of the step and the paths `carried`.
    Otherwise they run in `box`. /logs/verifier is copied to `logs`. Raises `VerifierError` if there is no reward, and
    `BoxError` if a box fails.
    """
    await _collect(step, box)
    await box.kill_processes()
    if start is None:
        return await _run_tests(step, box, logs)
    with owned_folders.temporary("agentloop-artifacts-") as kept:
        sources = [*_with_default(step.artifacts), *(Artifact(source=path) for path in carried)]
        found = [await _keep(box, each, kept / str(number)) for number, each in enumerate(sources)]
        fresh = await start()
        try:
            await make_folders(fresh)
            for artifact, copy in zip(sources, found, strict=True):
                if copy is not None:
                    await _place(fresh, copy, artifact.source)
            return await _run_tests(step, fresh, logs)
        finally:
            await asyncio.shield(fresh.stop())


async def _run_tests(step: TaskStep, box: Box, logs: Path | None) -> Rewards:
    where = step.verifier_box
    has_tests = where is not None and where.has_tests
    remove = "; ".join(f"rm -rf -- {VERIFIER}/{name}" for name in _REWARD_FILES)
    is_empty = step.config.name or where is not None
    await as_root(
        box, f"{_no_link('/logs')}; {_no_link(VERIFIER)}; mkdir -p {VERIFIER}; chmod 777 {VERIFIER}; {remove}"
    )
    if is_empty:
        await as_root(box, emptied(VERIFIER))
    if not has_tests:
        await as_root(box, f"rm -rf -- {TESTS}")
    with owned_folders.temporary("agentloop-verifier-") as made:
        before, after = made / "before", made / "after"
        await box.download(VERIFIER, before, max_bytes=_LOG_BYTES)
        if any((before / name).exists() for name in _REWARD_FILES):
            raise BoxError("the agent's box keeps a reward that was written before the tests ran")
        if not has_tests:
            for folder in step.test_folders:
                await upload_selected(step.task.folder, folder, box, TESTS)
            await as_root(box, f"chmod +x {TESTS}/test.sh")
        result = await box.exec(
            f"({TESTS}/test.sh) > {VERIFIER}/{_OUTPUT} 2>&1",
            env=resolved(step.verifier_env),
            user=user_of(step.verifier_user),
            timeout=step.verifier_timeout,
        )
        await box.kill_processes()
        if result.timed_out:
            raise VerifierError(f"the tests took longer than {step.verifier_timeout:g} s")
        await box.download(VERIFIER, after, max_bytes=_LOG_BYTES)
        if logs is not None:
            shutil.copytree(after, logs, dirs_exist_ok=True)
        return read_rewards(after, f"they ended with {result.return_code}{_last_words(after / _OUTPUT)}")


def _last_words(output: Path) -> str:
    """Return the end of what the tests printed, for an error."""
    text = ""
    if output.is_file() and not output.is_symlink():
        with output.open("rb") as file:
            file.seek(max(output.stat().st_size - _SHOWN_BYTES, 0))
            text = file.read().decode(errors="replace").strip()
    return f" and printed: {text}" if text else " and printed nothing"


def _no_link(folder: str) -> str:
    return f"if [ -L {folder} ] || [ -f {folder} ]; then rm -f -- {folder}; fi"


async def _collect(step: TaskStep, box: Box) -> None:
    """Run the commands of [[verifier.collect]]; log failures, as in Harbor."""
    own = step.config.verifier.collect if step.config.name else []
    for each in [*step.task.config.verifier.collect, *own]:
        assert each.service == MAIN
        result = await box.exec(each.command, timeout=each.timeout_sec, user=user_of(each.user))
        if result.return_code != 0:
            _logger.warning("The collect command %r of %s failed: %s", each.command, step.task.name, result.stderr)


def _with_default(artifacts: tuple[Artifact, ...]) -> list[Artifact]:
    """Return the artifacts, with /logs/artifacts first unless it is among them."""
    has_default = any(each.source.rstrip("/") == ARTIFACTS for each in artifacts)
    return list(artifacts) if has_default else [Artifact(source=ARTIFACTS), *artifacts]


async def _keep(box: Box, artifact: Artifact, target: Path) -> Path | None:
    """Copy an artifact to this machine; None if the box has none. The tests decide what its absence means."""
    try:
        await box.download(artifact.source, target)
    except BoxError as error:
        if not await _is_missing(box, artifact.source):
            raise
        _logger.debug("%s has no artifact %s: %s", box.id, artifact.source, error)
        return None
    without_excluded(target, artifact.exclude)
    return target


async def _is_missing(box: Box, path: str) -> bool:
    return (await box.exec(["/bin/sh", "-c", '[ ! -e "$1" ]', "sh", path], user="root", timeout=10)).return_code == 0


async def _place(box: Box, copy: Path, target: str) -> None:
    if await asyncio.to_thread(copy.is_dir):
        await as_root(box, emptied(target))
    await box.upload(copy, target)
