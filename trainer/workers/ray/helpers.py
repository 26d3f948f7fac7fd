"""Workers that sample turns for each other: a worker as seen by another one, and what a worker has of others."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import EngineDead, FinishReason, Generation, SamplingParams

if TYPE_CHECKING:
    from agentloop.engines.base import Engine


@dataclass(slots=True, frozen=True)
class RayHelper:
    """A `Helper`: the actor that it names, asked by the worker `owner`."""

    actor: Any
    owner: str = field(compare=False)

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        """See `Helper`. A turn that fails there, or is cut off, is another one's to try."""
        import ray

        ids = array("i", prompt)
        answer = self.actor.sample.remote(ids, params, trajectory_id, images, self.owner)
        try:
            turn: Generation = await answer
        except asyncio.CancelledError:
            ray.cancel(answer)
            raise
        except ray.exceptions.RayError as error:  # of the worker, or what its engine raised
            raise EngineDead(f"the other worker did not sample the turn: {error}") from error
        if turn.finish_reason is FinishReason.ABORT:
            raise EngineDead("the other worker is being closed")
        return turn

    def release(self, trajectory_id: str) -> None:
        """See `Engine.release`."""
        self.actor.release_guest.remote(trajectory_id)


@dataclass(slots=True)
class _Guest:
    owner: str
    num_tokens: int
    """Of the trajectory, so far."""


class Guests:
    """Trajectories of other workers whose turns `engine` samples. They take room, between their turns too."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._guests: dict[str, _Guest] = {}
        self.num_running = 0
        """Turns that are being sampled."""
        self.num_turns = 0
        """That ended so far."""

    def __len__(self) -> int:
        return len(self._guests)

    @property
    def resident_tokens(self) -> int:
        """Of all of them. May be read from another thread."""
        return sum(guest.num_tokens for guest in list(self._guests.values()))

    async def sample(
        self, prompt: Sequence[int], params: SamplingParams, trajectory_id: str, images: Sequence[Any], owner: str
    ) -> Generation:
        """A turn of a trajectory that the worker `owner` plays."""
        guest = self._guests[trajectory_id] = _Guest(owner, len(prompt))
        self.num_running += 1
        try:
            turn = await self._engine.generate(prompt, params, trajectory_id=trajectory_id, images=images)
        finally:
            self.num_running -= 1
        guest.num_tokens += len(turn.ids)
        self.num_turns += 1
        return turn

    def release(self, trajectory_id: str) -> None:
        """It has ended. Unknown ones are ignored."""
        if self._guests.pop(trajectory_id, None) is not None:
            self._engine.release(trajectory_id)

    def dismiss(self, owner: str) -> None:
        """The worker is no more, and so are its trajectories."""
        for name in [name for name, guest in self._guests.items() if guest.owner == owner]:
            self.release(name)
