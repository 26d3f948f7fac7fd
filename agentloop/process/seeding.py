"""Derive seeds from the seed of the run and a few numbers, so that no generator state has to be saved."""

from __future__ import annotations

import random

import numpy as np


def seed_of(*numbers: int) -> int:
    """Return one 63-bit seed for several numbers, such as (run seed, step, slot)."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_everything(*numbers: int) -> None:
    """Seed the global generators of Python, numpy and torch, which rewards and models may use."""
    import torch

    seed = seed_of(*numbers)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)
