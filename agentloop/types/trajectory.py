"""`Trajectory`: the append-only token stream of one episode, made of segments.

Loss mask, logprobs and policy versions follow from the segments, so they cannot disagree with the ids. Only a `sampled`
segment has logprobs and versions; all others are context. Growing typed arrays take 12 bytes per sampled token and 4
bytes per other token. Segments are stored in arrays, too: a thousand long episodes would otherwise be hundreds of
thousands of small objects, which the garbage collector scans again and again.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agentloop.types.grammar import Grammar
from agentloop.types.image import PlacedImage
from agentloop.types.limits import StopReason
from agentloop.types.messages import Message, text_of
from agentloop.types.routed_experts import RoutedExperts, joined

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_VERSION = -1
"""Policy version of tokens that were not sampled."""


class SegmentKind(StrEnum):
    """Origin of a segment's tokens."""

    PROMPT = "prompt"
    SAMPLED = "sampled"
    """Sampled by the policy: the only tokens that carry loss."""
    OBSERVATION = "observation"
    """Tool results, environment messages and the generation prompt after them."""
    TEMPLATE = "template"
    """Inserted by the chat template after a sampled turn."""


_KINDS = tuple(SegmentKind)
_CODES = {kind: code for code, kind in enumerate(_KINDS)}
_SAMPLED = _CODES[SegmentKind.SAMPLED]


class Segment(NamedTuple):
    """Tokens `start:end` of the stream, and the images that they show."""

    kind: SegmentKind
    start: int
    end: int
    images: tuple[Any, ...] = ()
    """A `PlacedImage` for each image that the model sees; images of other engines unchanged."""
    grammar: Grammar | None = None
    """Form of a sampled turn that was constrained."""


def _typed(code: str, values: Sequence[Any], what: str) -> array[Any]:
    if values.__class__ is array and values.typecode == code:
        return values
    try:
        return array(code, values)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{what} of a segment must be {'float' if code == 'f' else 'int32'}s: {error}") from error


def _check_places(images: Sequence[Any], start: int, end: int) -> None:
    """Raise `ValueError` if images overlap or leave the segment `start:end`."""
    for image in images:
        if isinstance(image, PlacedImage):
            if not start <= image.start <= image.end <= end:
                raise ValueError(
                    f"an image covers the tokens {image.start}:{image.end}, but only {start}:{end} are free"
                )
            start = image.end


@dataclass(slots=True)
class Trajectory:
    """One episode as tokens, with its outcome."""

    trajectory_id: str = ""
    group_id: str = ""
    """Id of the group, the episodes of one task."""
    place: int = 0
    """Index of the episode in its group."""
    messages: list[Message] = field(default_factory=list)
    """The episode as messages, for rewards and for people; never rendered again."""
    stop_reason: StopReason | None = None
    """None while the episode runs."""
    reward: float | None = None
    """Total reward; None until the episode is scored, and if scoring fails."""
    turn_rewards: list[float] = field(default_factory=list)
    """Reward of each sampled turn, from the environment and its tools."""
    failures: dict[str, int] = field(default_factory=dict)
    """`FailureKind` -> count."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Turns, calls, seconds by stage, and the metrics of tools."""
    task: dict[str, Any] = field(default_factory=dict)
    """The dataset row."""
    error: str | None = None
    """Message of the failure that ended the episode or its scoring."""
    answer: str | None = None
    """Answer of an agent program; None: the last turn of the model is the answer."""
    shared_state: dict[str, Any] = field(default_factory=dict, repr=False)
    """State that the tools share (`ToolContext.shared_state`), for rewards. Empty after the episode, and not stored."""
    role: str = ""
    """Name of the player in an episode of several players; advantages compare streams of the same role."""
    branches: list[Trajectory] = field(default_factory=list)
    """Further token streams of the same episode.

    An agent program (`agentloop.gateway`) may rewrite its history, retry a turn, or hold several conversations. Tokens
    that two streams share carry loss in only one of them."""
    _ids: array[int] = field(default_factory=lambda: array("i"), repr=False)
    _sampled_logprobs: array[float] = field(default_factory=lambda: array("f"), repr=False)
    """Logprobs of sampled tokens only, in order; `_sampled_versions` likewise."""
    _sampled_versions: array[int] = field(default_factory=lambda: array("i"), repr=False)
    _kinds: array[int] = field(default_factory=lambda: array("b"), repr=False)
    """Kind of each segment, as an index into `_KINDS`."""
    _ends: array[int] = field(default_factory=lambda: array("i"), repr=False)
    _segment_images: dict[int, tuple[Any, ...]] = field(default_factory=dict, repr=False)
    """Index of a segment -> its images."""
    _grammars: dict[int, Grammar] = field(default_factory=dict, repr=False)
    """Index of a constrained turn's segment -> its grammar."""
    routed: RoutedExperts | None = field(default=None, repr=False)
    """Experts of the first tokens of the stream, if the engine returns them; the learner's router chooses for the
    others."""

    def append(
        self,
        kind: SegmentKind,
        ids: Sequence[int],
        *,
        logprobs: Sequence[float] | None = None,
        versions: Sequence[int] | None = None,
        images: Sequence[Any] = (),
        grammar: Grammar | None = None,
    ) -> None:
        """Append a whole segment.

        `sampled` needs a logprob and a policy version for each id; other kinds must have neither. The tokens of each
        `PlacedImage` must be among the new ones. If it raises `ValueError`, the trajectory is unchanged.
        `grammar` is that of a constrained turn.
        """
        new_ids = _typed("i", ids, "ids")
        num_new = len(new_ids)
        if kind is SegmentKind.SAMPLED:
            if logprobs is None or versions is None:
                raise ValueError("sampled tokens need their logprobs and policy versions")
            new_logprobs = _typed("f", logprobs, "logprobs")
            new_versions = _typed("i", versions, "versions")
            if not num_new == len(new_logprobs) == len(new_versions):
                raise ValueError(
                    f"{num_new} ids, {len(new_logprobs)} logprobs and {len(new_versions)} versions: "
                    "a sampled segment needs one of each per token"
                )
        elif logprobs is not None or versions is not None or grammar is not None:
            raise ValueError(f"{kind} tokens were not sampled: they have no logprobs, no versions and no grammar")
        shown = tuple(images)
        if num_new == 0 and not shown:
            return
        if shown:
            _check_places(shown, len(self._ids), len(self._ids) + num_new)
        self._ids.extend(new_ids)  # raises if a caller exports the buffer
        # The lines below can fail only for lack of memory.
        if kind is SegmentKind.SAMPLED:
            self._sampled_logprobs.extend(new_logprobs)
            self._sampled_versions.extend(new_versions)
        if shown:
            self._segment_images[len(self._ends)] = shown
        if grammar is not None:
            self._grammars[len(self._ends)] = grammar
        self._kinds.append(_CODES[kind])
        self._ends.append(len(self._ids))

    def add_routed(self, routed: RoutedExperts | None) -> None:
        """Record the experts of tokens that have none yet; known experts are kept."""
        if routed is not None and (new := routed.part(self.num_routed, len(self))) is not None:
            self.routed = joined(self.routed, new)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Sequence[int]:
        """The live buffer of ids, read-only; it grows with the trajectory."""
        return self._ids

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """Copy of the ids, int32 [num_tokens]."""
        return np.array(self._ids, dtype=np.int32)

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Logprobs, float32 [num_tokens]; 0 for tokens that were not sampled."""
        logprobs = np.zeros(len(self), dtype=np.float32)
        logprobs[self.loss_mask] = self._sampled_logprobs
        return logprobs

    @property
    def versions(self) -> NDArray[np.int32]:
        """Policy versions, int32 [num_tokens]; -1 for tokens that were not sampled."""
        versions = np.full(len(self), NO_VERSION, dtype=np.int32)
        versions[self.loss_mask] = self._sampled_versions
        return versions

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """Whether each token was sampled, bool [num_tokens]."""
        sampled = np.frombuffer(self._kinds, dtype=np.int8) == _SAMPLED if self._kinds else np.zeros(0, dtype=np.bool_)
        lengths = np.diff(np.array(self._ends, dtype=np.int64), prepend=0)
        return np.repeat(sampled, lengths)

    @property
    def segments(self) -> list[Segment]:
        """Segments of the stream, in order."""
        images = self._segment_images
        starts = itertools.chain((0,), self._ends)
        return [
            Segment(_KINDS[kind], start, end, images.get(index, ()), self._grammars.get(index))
            for index, (kind, start, end) in enumerate(zip(self._kinds, starts, self._ends, strict=False))
        ]

    def sampled_segments(self) -> Iterator[Segment]:
        return (segment for segment in self.segments if segment.kind is SegmentKind.SAMPLED)

    @property
    def num_sampled(self) -> int:
        return len(self._sampled_logprobs)

    @property
    def num_routed(self) -> int:
        """Number of tokens at the start of the stream whose experts are known."""
        return 0 if self.routed is None else self.routed.end

    @property
    def num_turns(self) -> int:
        return self._kinds.count(_SAMPLED)

    @property
    def images(self) -> list[Any]:
        """All images, in the order of the stream."""
        return [image for shown in self._segment_images.values() for image in shown]

    @property
    def final_text(self) -> str:
        """`answer`, or else the text of the last assistant message without thinking and calls, or else ""."""
        if self.answer is not None:
            return self.answer
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                return text_of(message.get("content", ""))
        return ""

    def count(self, failure: str) -> None:
        """Count one failure of a kind."""
        self.failures[failure] = self.failures.get(failure, 0) + 1
