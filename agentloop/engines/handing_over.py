"""Turns that are handed over: another worker's engine samples them, and the episode stays where it is.

What travels is token ids: those of the prompt there, those of the turn back, with their logprobs and the policy
versions of the engine that sampled them. Environment and tools stay in their worker: their state needs no copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from agentloop.engines.base import Engine, EngineDead, Generation, SamplingParams
from agentloop.engines.wrapping import WrappedEngine


class Helper(Protocol):
    """The engine of another worker. Equal where it is the same one."""

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        """See `Engine.generate`. Raises `EngineDead` where its worker has gone."""
        ...

    def release(self, trajectory_id: str) -> None:
        """See `Engine.release`."""


H = TypeVar("H")


def with_most_room(room: Mapping[H, int]) -> H | None:
    """Who takes the next trajectory; None where nobody has room. The first of equals."""
    helper = max(room, key=lambda each: room[each], default=None)
    return helper if helper is not None and room[helper] > 0 else None


class Helpers:
    """The workers that help now. A trajectory stays with the one that had its last turn, where its prefix is cached."""

    def __init__(self) -> None:
        self._room: dict[Helper, int] = {}
        self._helper_of: dict[str, Helper] = {}
        self._offered = asyncio.Event()
        self.num_turns = 0
        """That were handed over so far."""

    def offer(self, room: Mapping[Helper, int]) -> None:
        """From now on these help, each with so many further trajectories; those that it has it keeps."""
        self._room = dict(room)
        self._helper_of = {name: helper for name, helper in self._helper_of.items() if helper in self._room}
        if with_most_room(self._room) is not None:
            self._offered.set()
        else:
            self._offered.clear()

    async def come(self) -> None:
        """Until one has room."""
        await self._offered.wait()

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        """See `Engine.generate`. A turn whose helper goes meanwhile is sampled by the next one. Raises `EngineDead`
        where none has room: nothing of the turn was sampled then."""
        while (helper := self._take(trajectory_id)) is not None:
            try:
                turn = await helper.generate(prompt, params, trajectory_id=trajectory_id, images=images)
            except EngineDead:
                self._lose(helper)
                continue
            self.num_turns += 1
            return turn
        raise EngineDead("no other worker has room for the turn")

    def release(self, trajectory_id: str) -> None:
        """See `Engine.release`."""
        if (helper := self._helper_of.pop(trajectory_id, None)) is not None:
            helper.release(trajectory_id)

    def _take(self, trajectory_id: str) -> Helper | None:
        helper = self._helper_of.get(trajectory_id)
        if helper is None and (helper := with_most_room(self._room)) is not None:
            self._room[helper] -= 1
            self._helper_of[trajectory_id] = helper
        if with_most_room(self._room) is None:
            self._offered.clear()
        return helper

    def _lose(self, helper: Helper) -> None:
        self.offer({other: room for other, room in self._room.items() if other != helper})


class HandingOverEngine(WrappedEngine):
    """`engine`, whose turns are sampled by `helpers` while `is_draining`, as far as these have room."""

    def __init__(self, engine: Engine, helpers: Helpers) -> None:
        super().__init__(engine)
        self.helpers = helpers
        self.is_draining = False

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        if self.is_draining:
            try:
                return await self.helpers.generate(prompt, params, trajectory_id=trajectory_id, images=images)
            except EngineDead:
                pass
        return await super().generate(prompt, params, trajectory_id=trajectory_id, images=images)

    def release(self, trajectory_id: str) -> None:
        self.helpers.release(trajectory_id)
        super().release(trajectory_id)
