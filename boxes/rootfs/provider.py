"""`RootfsProvider`: boxes on this machine without an engine."""

from __future__ import annotations

import asyncio
import os
import uuid
from dataclasses import replace
from pathlib import Path

from agentloop.boxes.images.prepared import PreparedImages
from agentloop.boxes.images.store import ImageStore, StoredImage
from agentloop.boxes.interface.box import BoxError
from agentloop.boxes.interface.spec import BoxSpec, Image, check_limits
from agentloop.boxes.network.proxy import variables
from agentloop.boxes.rootfs.box import RootfsBox
from agentloop.boxes.rootfs.connection import Connection
from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.levels.seccomp import build_filter
from agentloop.sandboxes.levels.slot_template import SlotTemplate
from agentloop.sandboxes.worlds.cgroups import Cgroup, Cgroups
from agentloop.sandboxes.worlds.world import PidFd

_MODULES = tuple(
    f"agentloop.boxes.inside.{name}" for name in ("files", "layer", "commands", "filesystem", "first_process", "keeper")
)


class RootfsProvider:
    """Boxes in namespaces of the kernel: user, process, mount, network, IPC and UTS, and a cgroup each.

    A box sees the files of its image below a private layer in memory, which counts towards its memory. All its users,
    root included, map to a separate range of users without rights outside. It has no network; it reaches allowed hosts
    through an HTTP proxy, which its environment names. When this process ends for any reason, the kernel ends all
    boxes. `folder` stores unpacked images. `storage_mb` and `memory_mb` are the defaults for boxes.
    """

    def __init__(self, *, folder: str | None = None, storage_mb: int = 1024, memory_mb: int = 2048) -> None:
        check_limits(memory_mb=memory_mb, storage_mb=storage_mb)
        self._images = PreparedImages(ImageStore(Path(folder) if folder else None).get)
        self._storage_mb = storage_mb
        self._memory_mb = memory_mb
        self._keeper: SlotTemplate | None = None
        self._cgroups: Cgroups | None = None
        self._boxes: set[RootfsBox] = set()

    async def open(self) -> None:
        """Start the keeper of the boxes. Raises `UserError` if this machine cannot make any."""
        self._cgroups = Cgroups.find(cpus=True)
        plan = {
            "owner": os.getpid(),
            "cgroups": self._cgroups.paths if self._cgroups else [],
            "filter": build_filter(is_box=True),
        }
        try:
            self._keeper = await SlotTemplate.start(plan, _MODULES[-1], _MODULES)
        except SandboxError as error:
            self._close_cgroups()
            raise UserError(
                f"The provider rootfs cannot make boxes here: {error} It needs Linux 6.6, and root or user namespaces."
            ) from error

    async def prepare(self, image: Image) -> None:
        """Unpack an image, once for all boxes and processes. Raises `UserError` if it is unavailable."""
        await self._images.get(image)

    async def start(self, spec: BoxSpec) -> RootfsBox:
        """Start a box. Raises `UserError` if the spec cannot be met, `BoxError` if the start fails."""
        assert self._keeper is not None, "call open first"
        self._check(spec)
        image = await self._images.get(spec.image)
        ways = variables() if spec.network.mode != "none" else {}
        spec = replace(
            spec,
            env=image.env | ways | dict(spec.env),
            workdir=spec.workdir or image.workdir,
            user=spec.user or image.user,
        )
        return await self._open(await self._start(spec, image), None)

    async def _fork(self, original: RootfsBox) -> RootfsBox:
        image = await self._images.get(original.spec.image)
        return await self._open(await self._start(original.spec, image, is_fork=True), original)

    async def _open(self, box: RootfsBox, original: RootfsBox | None) -> RootfsBox:
        try:
            if original is not None:
                await box.fill_from(original)
            await box.open_network()
        except BaseException:
            await box.stop()
            raise
        return box

    async def _start(self, spec: BoxSpec, image: StoredImage, *, is_fork: bool = False) -> RootfsBox:
        assert self._keeper is not None
        name = f"box-{uuid.uuid4().hex[:12]}"
        try:
            control, pid, pidfd = await self._keeper.make(
                layers=list(image.layers),
                storage_mb=spec.storage_mb or self._storage_mb,
                hostname=name,
                workdir=spec.workdir,
                is_fork=is_fork,
            )
        except SandboxError as error:
            raise BoxError(f"A box could not be started: {error}") from error
        process = PidFd(pidfd)
        try:
            cgroup = self._cgroup_of(pid, spec)
        except OSError as error:
            control.close()
            process.kill()
            raise BoxError(f"A box could not be put into a cgroup of its own: {error}.") from error
        box = RootfsBox(name, spec, Connection(name, control, process), self._fork)
        self._boxes.add(box)
        process.ended.add_done_callback(lambda _: self._ended(box, cgroup))
        return box

    def _ended(self, box: RootfsBox, cgroup: Cgroup | None) -> None:
        self._boxes.discard(box)
        if cgroup is not None and self._cgroups is not None:
            self._cgroups.discard(cgroup)

    def _check(self, spec: BoxSpec) -> None:
        if os.geteuid() != 0 and (spec.user or "0").partition(":")[0] not in ("0", "root"):
            raise UserError(
                f"The box needs the user {spec.user!r}, but without root the provider rootfs offers only the user "
                "root. Start agentloop as root."
            )
        if self._cgroups is None and (spec.memory_mb or spec.cpus):
            raise UserError(
                "The box limits memory or processors, but this process may not create cgroups, which enforce limits. "
                "Start agentloop as root or with a delegated cgroup."
            )

    def _cgroup_of(self, pid: int, spec: BoxSpec) -> Cgroup | None:
        if self._cgroups is None:
            return None
        cgroup = self._cgroups.create(spec.processes)
        try:
            cgroup.limit((spec.memory_mb or self._memory_mb) << 20)
            has_quota = spec.cpus is None or cgroup.limit_cpus(spec.cpus)
            cgroup.add(pid)
        except OSError:
            self._cgroups.discard(cgroup)
            raise
        if not has_quota:
            assert spec.cpus is not None
            cores = sorted(os.sched_getaffinity(0))
            first = pid % len(cores)
            count = min(len(cores), max(1, -int(-spec.cpus // 1)))
            os.sched_setaffinity(pid, {cores[(first + index) % len(cores)] for index in range(count)})
        return cgroup

    async def close(self) -> None:
        """Stop all remaining boxes, and the keeper."""
        await asyncio.gather(*(box.stop() for box in list(self._boxes)))
        if self._keeper is not None:
            await self._keeper.close()
            self._keeper = None
        self._close_cgroups()

    def _close_cgroups(self) -> None:
        if self._cgroups is not None:
            self._cgroups.close()
            self._cgroups = None
