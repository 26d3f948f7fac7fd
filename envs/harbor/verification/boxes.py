"""The boxes of tasks: their specs, and the folders that every box of a task has."""

from __future__ import annotations

import asyncio
import fnmatch
import os
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from agentloop.boxes.interface.box import Box, BoxError
from agentloop.boxes.interface.spec import BoxSpec, Image, Network
from agentloop.envs.harbor.tasks.machine import EnvironmentConfig, Healthcheck, NetworkMode, PhaseNetwork, User
from agentloop.envs.harbor.tasks.task import HarborTask
from agentloop.envs.harbor.tasks.variables import resolved
from agentloop.errors import UserError, nearest

LOGS, AGENT, VERIFIER, ARTIFACTS = "/logs", "/logs/agent", "/logs/verifier", "/logs/artifacts"
TESTS, SOLUTION = "/tests", "/solution"
_SEARCH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH; set -e; "
_MOST_SHOWN = 10
"""Largest number of images that an error names: every task of a benchmark may have its own."""
_NETWORKS = {NetworkMode.PUBLIC: "public", NetworkMode.NO_NETWORK: "none", NetworkMode.ALLOWLIST: "allowlist"}


def image_of(name: str | None, folder: Path, images: Mapping[str, str]) -> Image:
    """Return the image of a box: the one with this name, else the one built from the Dockerfile in `folder`.

    `images` replaces images of tasks, by their names, or all ("*"), by other names, tarballs or directories. Raises
    `UserError` for a folder without a Dockerfile.
    """
    if (other := images.get(name or "", images.get("*"))) is not None:
        path = Path(other).expanduser()
        if path.is_dir():
            return Image(tree=path.absolute())
        return Image(tarball=path.absolute()) if path.is_file() else Image(reference=other)
    if name:
        return Image(reference=name)
    if not (folder / "Dockerfile").is_file():
        others = ", ".join(sorted(path.name for path in folder.glob("*compose*"))) if folder.is_dir() else ""
        raise UserError(
            f"{folder} has no Dockerfile{f', only {others}, which boxes cannot run' if others else ''}: write one, or "
            "name a docker_image in task.toml."
        )
    return Image(dockerfile=folder)


def check_image_names(images: Mapping[str, str]) -> None:
    """Raise `UserError` if the name of an image to replace is empty."""
    if "" in images:
        raise UserError(f"The image to replace by {images['']!r} has no name: write its name, or * for all images.")


def check_images_used(images: Mapping[str, str], tasks: Iterable[HarborTask]) -> None:
    """Raise `UserError` for a name in `images` that no task has, because replacing it would have no effect."""
    known = sorted({name for task in tasks for name in _image_names(task)})
    unknown = [name for name in images if name != "*" and name not in known]
    if not unknown:
        return
    shown = known if len(known) <= _MOST_SHOWN else [*known[:_MOST_SHOWN], f"{len(known) - _MOST_SHOWN} more"]
    raise UserError(
        f"No task has the image {' or '.join(map(repr, unknown))}, which is to be replaced: correct or remove it."
        f"{nearest(unknown[0], known)} The images of the tasks: {', '.join(shown) or 'none with a name'}."
    )


def _image_names(task: HarborTask) -> Iterator[str]:
    boxes = [each.verifier_box for each in task.steps]
    names = [task.config.environment.docker_image, *(each.image for each in boxes if each is not None)]
    return (name for name in names if name)


def spec_of(environment: EnvironmentConfig, image: Image, *, network: Network | None = None) -> BoxSpec:
    """Return the spec of a box. Raises `UserError` for features that no box has: Windows, GPUs, TPUs."""
    if environment.os != "linux" or environment.gpus or environment.tpu:
        raise UserError("The task needs Windows, GPUs or TPUs, which boxes do not have: leave it out.")
    return BoxSpec(
        image=image,
        network=network_of(environment) if network is None else network,
        workdir=environment.workdir,
        env=resolved(environment.env),
        cpus=environment.cpus,
        memory_mb=environment.memory_mb,
        storage_mb=environment.storage_mb,
    )


def network_of(table: PhaseNetwork) -> Network:
    """Return the network of a table that sets network_mode."""
    assert table.network_mode is not None
    hosts = tuple(sorted(set(table.allowed_hosts or ())))
    return Network(mode=_NETWORKS[table.network_mode], hosts=hosts)  # type: ignore[arg-type]


def user_of(user: User) -> str | None:
    """Return a user in the form that boxes accept."""
    return None if user is None else str(user)


async def as_root(box: Box, script: str, *, timeout: float = 60.0) -> None:  # noqa: ASYNC109
    """Run lines of shell as root. Raises `BoxError` if one fails."""
    result = await box.exec(["/bin/sh", "-c", _SEARCH + script], cwd="/", user="root", timeout=timeout)
    if result.return_code != 0:
        raise BoxError(f"a command of the box failed ({result.return_code}): {script[:80]} … {result.stderr[-300:]}")


def emptied(*folders: str) -> str:
    """Return shell lines that make folders empty, writable by all users, and not links."""
    lines = []
    for folder in map(shlex.quote, folders):
        lines.append(f"if [ -L {folder} ] || [ -f {folder} ]; then rm -f -- {folder}; fi; mkdir -p {folder}")
        lines.append(f"find {folder} -mindepth 1 -maxdepth 1 -exec rm -rf -- {{}} +; chmod 777 {folder}")
    return "; ".join(lines)


async def make_folders(box: Box) -> None:
    """Make the log folders of a new box."""
    folders = f"{AGENT} {VERIFIER} {ARTIFACTS}"
    await as_root(box, f"mkdir -p {folders}; chmod 777 {folders}")


async def wait_until_healthy(box: Box, check: Healthcheck | None, user: str | None = None) -> None:
    """Run a health check until it succeeds. Raises `BoxError` after its retries."""
    if check is None:
        return
    begin, failures = time.monotonic(), 0
    while True:
        is_starting = time.monotonic() < begin + check.start_period_sec
        result = await box.exec(check.command, timeout=check.timeout_sec, user=user)
        if result.return_code == 0:
            return
        if is_starting:
            await asyncio.sleep(check.start_interval_sec)
            continue
        failures += 1
        if failures >= check.retries:
            raise BoxError(f"the health check {check.command!r} failed {failures} times: {result.stderr[-300:]}")
        await asyncio.sleep(check.interval_sec)


def without_excluded(folder: Path, patterns: Sequence[str]) -> None:
    """Remove paths from a folder that match a pattern, in whole or in their last parts."""
    for path in sorted(folder.rglob("*"), reverse=True) if patterns else ():
        parts = path.relative_to(folder).parts
        tails = {"/".join(parts[first:]) for first in range(len(parts))}
        if any(fnmatch.fnmatch(tail, pattern.rstrip("/")) for tail in tails for pattern in patterns):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else os.unlink(path)
