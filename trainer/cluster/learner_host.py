"""Where the learner of a run lives, as the run found it out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True, frozen=True)
class Seat:
    """GPUs of a node that Ray gives to nobody else."""

    node_id: str
    gpus: tuple[str, ...]
    """As in CUDA_VISIBLE_DEVICES."""


@dataclass(slots=True, frozen=True)
class Home:
    """What every rank of the learner must find, on whichever node it is."""

    folder: Path
    """Of the run: checkpoints are written there by all ranks."""
    seats: tuple[Seat, ...] = ()
    """By node, this one first. Empty where nothing is kept for the learner: then it uses all GPUs of its nodes."""
