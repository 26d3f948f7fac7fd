"""Lay out the tokens of samples in a packed row: sequence after sequence, or a prompt once for its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentloop.trainer.batch.train_batch import Sample
from agentloop.types.image import PlacedImage
from agentloop.vision.positions import rope_positions

_WORTH = 1 / 16
"""Share of a group's tokens that sharing its prompt must save, because each layer then merges two attentions."""


NOT_ROUTED = -1
"""Expert of a token that the learner's router chooses itself."""


class Unit(NamedTuple):
    """Samples that stay in one row."""

    indices: list[int]
    prefix: int
    """Common tokens at their start, which the row contains once; 0 if they share none."""
    num_tokens: int
    """Tokens of the unit in the row."""


@dataclass(slots=True, frozen=True, eq=False)
class RowLayout:
    """The layout of one row; `lengths` and `parents` of its segments are as in `PackedRow.of`."""

    lengths: list[int]
    parents: list[int | None]
    token_ids: NDArray[np.int32]
    """[num_tokens]."""
    positions: NDArray[np.int64]
    """[num_trained]; the token of the row that predicts each trained token, in the order of the samples."""
    images: list[PlacedImage]
    """Images at their places in the row."""
    rope: NDArray[np.int64] | None
    """[3, num_tokens], from `rope_positions`; None for a row without images."""
    routed: NDArray[np.int16] | None
    """Experts of the tokens, [num_tokens, decoder layers, k], `NOT_ROUTED` where they are unknown; None if all are."""

    @classmethod
    def of(cls, samples: Sequence[Sample], units: Sequence[Unit] | None = None) -> RowLayout:
        """Return the layout of samples; `units` divide them in order, and by default each sample is a unit."""
        sizes = [(1, 0)] * len(samples) if units is None else [(len(unit.indices), unit.prefix) for unit in units]
        lengths: list[int] = []
        parents: list[int | None] = []
        ids: list[NDArray[np.int32]] = []
        positions: list[NDArray[np.int64]] = []
        images: list[PlacedImage] = []
        rope: list[NDArray[np.int64]] = []
        routed: list[NDArray[np.int16]] = []
        shape = next((sample.routed.shape[1:] for sample in samples if sample.routed is not None), None)
        has_images = any(sample.images for sample in samples)
        rest = iter(samples)
        start = 0
        for size, prefix in sizes:
            root, parent = start, None
            for number in range(size):
                sample = next(rest)
                own_rope = rope_positions(len(sample), sample.images) if has_images else _NO_ROPE
                if prefix and number == 0:
                    parent = len(lengths)
                    lengths.append(prefix)
                    parents.append(None)
                    ids.append(sample.token_ids[:prefix])
                    routed += [] if shape is None else [_routed(sample, shape)[:prefix]]
                    rope.append(own_rope[:, :prefix])
                    images += _between(sample, 0, prefix, root)
                    start += prefix
                lengths.append(len(sample) - prefix)
                parents.append(parent)
                ids.append(sample.token_ids[prefix:])
                routed += [] if shape is None else [_routed(sample, shape)[prefix:]]
                rope.append(own_rope[:, prefix:])
                images += _between(sample, prefix, len(sample), start)
                # The first token is never trained (see Sample), so the token before a trained one is in the sequence.
                before = np.flatnonzero(sample.loss_mask).astype(np.int64) - 1
                positions.append(np.where(before < prefix, before + root, before - prefix + start))
                start += len(sample) - prefix
        found = np.concatenate(rope, axis=1) if has_images else None
        experts = np.concatenate(routed) if routed else None
        return cls(lengths, parents, np.concatenate(ids), np.concatenate(positions), images, found, experts)


_NO_ROPE = np.zeros((3, 0), np.int64)


def _routed(sample: Sample, shape: tuple[int, ...]) -> NDArray[np.int16]:
    """Return the experts of all tokens of a sample, [num_tokens, *shape]."""
    found = np.full((len(sample), *shape), NOT_ROUTED, np.int16)
    if sample.routed is not None:
        found[: len(sample.routed)] = sample.routed
    return found


def _between(sample: Sample, start: int, end: int, place: int) -> list[PlacedImage]:
    """Return the images of the tokens `start:end`, which are in the row from `place` on."""
    return [PlacedImage(image, at - start + place) for image, at in sample.images if start <= at < end]


def unit_patches(samples: Sequence[Sample], unit: Unit) -> list[int]:
    """Return the number of patches of each image of a unit in the row."""
    first = [image for image in samples[unit.indices[0]].images if image.start < unit.prefix]
    own = [image for index in unit.indices for image in samples[index].images if image.start >= unit.prefix]
    return [placed.image.num_patches for placed in first + own]


def shared_tokens(samples: Sequence[Sample]) -> int:
    """Return the number of untrained tokens that all samples start with; 0 for a single sample."""
    if len(samples) < 2:
        return 0
    shared = min(int(np.argmax(sample.loss_mask)) if sample.num_sampled else len(sample) - 1 for sample in samples)
    first = samples[0].token_ids
    for sample in samples[1:]:
        differs = np.flatnonzero(sample.token_ids[:shared] != first[:shared])
        shared = int(differs[0]) if len(differs) else shared
    return _whole_images(samples, shared)


def _whole_images(samples: Sequence[Sample], shared: int) -> int:
    """Return at most `shared`, cut before the first image that is not complete in it or differs between samples."""
    first = [placed for placed in samples[0].images if placed.start < shared]
    for number, placed in enumerate(first):
        same = all(
            len(sample.images) > number
            and sample.images[number].start == placed.start
            and sample.images[number].image.digest == placed.image.digest
            for sample in samples[1:]
        )
        if not same or placed.end > shared:
            return placed.start
    others = [p.start for sample in samples[1:] for p in sample.images[len(first) :] if p.start < shared]
    return min([shared, *others])


def units(samples: Sequence[Sample], indices: Sequence[int], token_budget: int, *, share: bool) -> list[Unit]:
    """Return the indices in units of at most `token_budget` tokens, except for a sample that is longer itself.

    With `share`, samples of a group are together as far as the budget allows, if their common start saves enough.
    """
    alone = [Unit([index], 0, len(samples[index])) for index in indices]
    if not share:
        return alone
    by_group: dict[str, list[int]] = {}
    for index in indices:
        by_group.setdefault(samples[index].group_id, []).append(index)
    found = [unit for unit in alone if not samples[unit.indices[0]].group_id]
    for group_id, group in by_group.items():
        if group_id:
            found += _split(samples, group, token_budget)
    return found


def _split(samples: Sequence[Sample], group: list[int], token_budget: int) -> list[Unit]:
    prefix = shared_tokens([samples[index] for index in group])
    if prefix * (len(group) - 1) <= _WORTH * sum(len(samples[index]) for index in group):
        return [Unit([index], 0, len(samples[index])) for index in group]
    parts: list[tuple[list[int], int]] = []
    for index in group:
        own = len(samples[index]) - prefix
        if not parts or parts[-1][1] + own > token_budget:
            parts.append(([], prefix))
        members, tokens = parts[-1]
        parts[-1] = [*members, index], tokens + own
    return [Unit(members, prefix if len(members) > 1 else 0, tokens) for members, tokens in parts]
