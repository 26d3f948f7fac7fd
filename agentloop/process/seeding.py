"""Randomness that follows from the run's seed and a number, so that nothing of it needs to be saved."""

from __future__ import annotations

import random

import numpy as np


def seed_of(*numbers: int) -> int:
    """One 63-bit seed from several numbers, e.g. (run seed, step, slot)."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_everything(*numbers: int) -> None:
    """Seed the global generators of Python, numpy and torch, which rewards and models may use."""
    import torch

    seed = seed_of(*numbers)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)
