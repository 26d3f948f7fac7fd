"""Utilisation of a GPU during a measurement, and the sampling speed that its memory bandwidth allows."""

from __future__ import annotations

import statistics
import threading
from importlib.util import find_spec
from types import TracebackType

import torch
from transformers import Qwen3Config

_EVERY = 0.05


class GpuUse:
    """Context manager that polls the utilisation of the first GPU, if CUDA and `nvidia-ml-py` are there."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._found: list[int] = []
        self._thread: threading.Thread | None = None
        if torch.cuda.device_count() and find_spec("pynvml"):
            self._thread = threading.Thread(target=self._ask, daemon=True)

    @property
    def busy(self) -> float | None:
        """Share of the time in which a kernel ran, or None if unknown."""
        return statistics.mean(self._found) / 100 if self._found else None

    def _ask(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        while not self._over.wait(_EVERY):
            self._found.append(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu)

    def __enter__(self) -> GpuUse:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()


def sampling_bound(config: Qwen3Config, *, context: float, in_flight: int, bandwidth: float) -> float:
    """Return sampled tokens per second if memory bandwidth is the only limit.

    Each token reads the keys and values of `context` tokens, and `in_flight` tokens share one read of the weights.
    All values are bfloat16; `bandwidth` is in bytes per second.
    """
    width, head = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    cache = 2 * 2 * config.num_hidden_layers * kv_heads * head * context
    layer = width * head * (2 * heads + 2 * kv_heads) + 3 * width * config.intermediate_size
    weights = 2 * (config.num_hidden_layers * layer + config.vocab_size * width)
    return bandwidth / (cache + weights / in_flight)
