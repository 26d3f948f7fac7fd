"""`WrappedEngine`: an engine around another one, for those that change how turns are sampled and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import Engine, Generation, SamplingParams

if TYPE_CHECKING:
    import torch


class WrappedEngine:
    """An `Engine` that does what `engine` does."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.policy_version = engine.policy_version
        self.max_model_len = engine.max_model_len

    async def start(self) -> None:
        await self.engine.start()
        self.max_model_len = self.engine.max_model_len

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        return await self.engine.generate(prompt, params, trajectory_id=trajectory_id, images=images)

    def release(self, trajectory_id: str) -> None:
        self.engine.release(trajectory_id)

    async def pause(self) -> None:
        await self.engine.pause()

    async def resume(self) -> None:
        await self.engine.resume()

    async def sleep(self, *, keep_weights: bool = True) -> None:
        await self.engine.sleep(keep_weights=keep_weights)

    async def wake(self) -> None:
        await self.engine.wake()

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        await self.engine.update_weights(weights, version)
        self.policy_version = version

    async def close(self) -> None:
        await self.engine.close()
