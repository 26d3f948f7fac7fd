"""Seconds from one moment to the next on a device, without waiting for it in between."""

from __future__ import annotations

import time
from itertools import pairwise

import torch


class Stopwatch:
    """`lap()` at every moment, `seconds()` when the device is done."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._times: list[float] = []

    def lap(self) -> None:
        if self._on_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Between the laps."""
        if self._on_cuda:
            return [start.elapsed_time(end) / 1000 for start, end in pairwise(self._events)]
        return [end - start for start, end in pairwise(self._times)]
