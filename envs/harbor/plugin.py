"""`Box`: our boxes as an environment of Harbor itself.

    harbor run --path TASKS --agent oracle --env agentloop.envs.harbor.plugin:Box

Only Harbor imports this module, in its own interpreter, which also needs agentloop. The keyword arguments `provider`,
`provider_options` and `images` of the environment are those of `HarborEnv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.models.task.config import NetworkMode

from agentloop.boxes.interface.box import Box as RunningBox
from agentloop.boxes.interface.spec import BoxSpec, Network
from agentloop.boxes.shared import provider_of
from agentloop.envs.harbor.verification.boxes import image_of, make_folders, user_of
from agentloop.errors import UserError

_MODES = {NetworkMode.NO_NETWORK: "none", NetworkMode.PUBLIC: "public", NetworkMode.ALLOWLIST: "allowlist"}


class Box(BaseEnvironment):
    """An environment of Harbor whose machine is a box."""

    def __init__(
        self,
        *arguments: Any,
        provider: str | None = None,
        provider_options: Mapping[str, Any] | None = None,
        images: Mapping[str, str] | None = None,
        **named: Any,
    ) -> None:
        self._provider = provider, provider_options
        self._images = images or {}
        self._box: RunningBox | None = None
        super().__init__(*arguments, **named)

    @staticmethod
    def type() -> str:
        """Return the name of this kind of environment."""
        return "agentloop"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Optional capabilities that boxes have."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True,
        )

    def _validate_definition(self) -> None:
        try:
            self._image()
        except UserError as error:
            raise FileNotFoundError(str(error)) from error

    def _image(self) -> Any:
        return image_of(self.task_env_config.docker_image, Path(self.environment_dir), self._images)

    async def start(self, force_build: bool) -> None:
        """Start the box."""
        policy = self.network_policy
        provider = await provider_of(*self._provider)
        spec = BoxSpec(
            image=self._image(),
            network=Network(mode=_MODES[policy.network_mode], hosts=tuple(policy.allowed_hosts or ())),  # type: ignore[arg-type]
            workdir=self.task_env_config.workdir,
            env=self._merge_env(None) or {},
            cpus=self._effective_cpus,
            memory_mb=self._effective_memory_mb,
            storage_mb=self.task_env_config.storage_mb,
        )
        self._box = await provider.start(spec)
        await make_folders(self._box)

    async def stop(self, delete: bool) -> None:
        """End the box."""
        if self._box is not None:
            await self._box.stop()

    @property
    def _running(self) -> RunningBox:
        if self._box is None:
            raise RuntimeError("The box is not running: call start first.")
        return self._box

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the box."""
        await self._running.upload(Path(source_path), target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the content of a directory into the box."""
        await self._running.upload(Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the box."""
        await self._running.download(source_path, Path(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the content of a directory out of the box."""
        await self._running.download(source_dir, Path(target_dir))

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in the box."""
        result = await self._running.exec(
            command, cwd=cwd, env=self._merge_env(env), user=user_of(self._resolve_user(user)), timeout=timeout_sec
        )
        if result.timed_out:
            raise TimeoutError(f"The command took longer than {timeout_sec} s.")
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=result.return_code)
