"""`RecallingEngine`: remembers the turns of running trajectories, so that another worker can go on with them.

An episode that was cut off is played again from its start, environment and tools included. As long as everything that
is shown to the model comes out as it did before, token for token, its turns are not sampled again: they are recalled,
with the logprobs and policy versions that they had. The first prompt that differs ends that, and sampling goes on.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentloop.engines.base import Engine, FinishReason, Generation, SamplingParams
from agentloop.engines.wrapping import WrappedEngine


@dataclass(slots=True, frozen=True)
class Turn:
    """One sampled turn, as it travels: 12 bytes a token."""

    trajectory_id: str
    place: int
    """Of the turn in its trajectory, from 0."""
    prompt: bytes
    """Digest of the ids before it."""
    generation: Generation


class RecallingEngine(WrappedEngine):
    """`engine`, with a memory of turns and of how long the trajectories in flight are."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._known: dict[str, Sequence[Turn]] = {}
        self._new: deque[Turn] = deque()
        self._places: dict[str, int] = {}
        """Of the next turn of each trajectory in flight."""
        self._lengths: dict[str, int] = {}
        self.num_turns = 0
        """Sampled or recalled so far: shows that there is progress."""
        self.num_recalled = 0

    @property
    def resident_tokens(self) -> int:
        """Of all trajectories that were not released, whether their turn runs or they wait for a tool. May be read from
        another thread."""
        return sum(list(self._lengths.values()))

    def recall(self, turns: Mapping[str, Sequence[Turn]]) -> None:
        """What trajectories that will be played again had sampled, in order."""
        self._known.update(turns)

    def forget(self, trajectory_ids: Iterable[str]) -> None:
        """What was to be recalled will not be played: another trajectory of that name begins with nothing."""
        for name in trajectory_ids:
            self._known.pop(name, None)

    def take_new(self) -> list[Turn]:
        """The turns sampled since the last call. May be called from another thread."""
        return [self._new.popleft() for _ in range(len(self._new))]

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        num_prompt, digest = len(prompt), _digest(prompt)
        place = self._places.get(trajectory_id, 0)
        self._lengths[trajectory_id] = num_prompt
        generation = self._recalled(trajectory_id, place, digest)
        if generation is None:
            generation = await super().generate(prompt, params, trajectory_id=trajectory_id, images=images)
            if generation.finish_reason is not FinishReason.ABORT:
                self._new.append(Turn(trajectory_id, place, digest, generation))
        self._places[trajectory_id] = place + 1
        self._lengths[trajectory_id] = num_prompt + len(generation.ids)
        self.num_turns += 1
        return generation

    def _recalled(self, trajectory_id: str, place: int, digest: bytes) -> Generation | None:
        known = self._known.get(trajectory_id, ())
        if place >= len(known) or known[place].prompt != digest:
            self._known.pop(trajectory_id, None)
            return None
        self.num_recalled += 1
        return known[place].generation

    def release(self, trajectory_id: str) -> None:
        self._known.pop(trajectory_id, None)
        self._places.pop(trajectory_id, None)
        self._lengths.pop(trajectory_id, None)
        super().release(trajectory_id)


def _digest(ids: Sequence[int]) -> bytes:
    values = ids if isinstance(ids, array) else array("i", ids)
    return hashlib.blake2b(memoryview(values), digest_size=16).digest()
