"""Replay known turns instead of sampling them again.

An interrupted episode starts again on another engine or worker, with a new environment and tools. While its prompts are
the same, token for token, its known turns are replayed with their logprobs and policy versions. From the first prompt
that differs, the engine samples.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentloop.engines.base import FinishReason, Generation
from agentloop.engines.episodes import Episode, current_episode


@dataclass(slots=True, frozen=True)
class Turn:
    """One sampled turn in the form that is sent between processes: 12 bytes per token."""

    episode: Episode
    trajectory_id: str
    """Token stream of the episode."""
    index: int
    """Index of the turn in its token stream."""
    prompt: bytes
    """Digest of the token ids before the turn."""
    generation: Generation


@dataclass(slots=True, frozen=True)
class OpenTurn:
    """A turn requested from an engine."""

    trajectory_id: str
    index: int
    prompt: bytes
    num_prompt_tokens: int
    known: Generation | None
    """The known turn to replay; None: sample it."""


class TurnRecord:
    """Turns that the token streams in flight have sampled, and known turns to replay."""

    def __init__(self) -> None:
        self._known: dict[str, Sequence[Turn]] = {}
        self._new: deque[Turn] = deque()
        self._num_turns: dict[str, int] = {}
        """Number of turns so far in each token stream in flight."""
        self._lengths: dict[str, int] = {}
        self.num_turns = 0
        """Number of turns sampled or replayed so far, a measure of progress."""
        self.num_replayed = 0

    @property
    def resident_tokens(self) -> int:
        """Total tokens of all streams in flight, even while their tools run. Any thread may read it."""
        return sum(list(self._lengths.values()))

    def replay(self, turns: Mapping[str, Sequence[Turn]]) -> None:
        """Register known turns, in order for each token stream, to replay when their prompts come."""
        self._known.update(turns)

    def forget(self, trajectory_ids: Iterable[str]) -> None:
        """Drop the known turns of these token streams."""
        for name in trajectory_ids:
            self._known.pop(name, None)

    def take_new(self) -> list[Turn]:
        """Return the turns sampled since the last call. Any thread may call it."""
        return [self._new.popleft() for _ in range(len(self._new))]

    def open(self, trajectory_id: str, prompt: Sequence[int]) -> OpenTurn:
        """Begin the next turn of a token stream."""
        index, digest = self._num_turns.get(trajectory_id, 0), _digest(prompt)
        self._lengths[trajectory_id] = len(prompt)
        return OpenTurn(trajectory_id, index, digest, len(prompt), self._find(trajectory_id, index, digest))

    def close(self, turn: OpenTurn, generation: Generation) -> None:
        """Record the result of a turn. Aborted turns, and turns outside of episodes, are not kept for replay."""
        if turn.known is not None:
            self.num_replayed += 1
        elif generation.finish_reason is not FinishReason.ABORT and (episode := current_episode()) is not None:
            self._new.append(Turn(episode, turn.trajectory_id, turn.index, turn.prompt, generation))
        self._num_turns[turn.trajectory_id] = turn.index + 1
        self._lengths[turn.trajectory_id] = turn.num_prompt_tokens + len(generation.ids)
        self.num_turns += 1

    def release(self, trajectory_id: str) -> None:
        """Forget a token stream that has ended."""
        self._known.pop(trajectory_id, None)
        self._num_turns.pop(trajectory_id, None)
        self._lengths.pop(trajectory_id, None)

    def _find(self, trajectory_id: str, index: int, digest: bytes) -> Generation | None:
        known = self._known.get(trajectory_id, ())
        if index >= len(known) or known[index].prompt != digest:
            self._known.pop(trajectory_id, None)
            return None
        return known[index].generation


def _digest(ids: Sequence[int]) -> bytes:
    values = ids if isinstance(ids, array) else array("i", ids)
    return hashlib.blake2b(memoryview(values), digest_size=16).digest()
