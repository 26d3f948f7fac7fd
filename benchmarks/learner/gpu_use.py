"""How much of a GPU a measurement uses, how programs share it, and the sampling speed that its bandwidth allows."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import torch
from transformers import Qwen3Config

_EVERY = 0.05


class GpuUse:
    """Context manager that polls the utilisation of the first visible GPU, if CUDA and `nvidia-ml-py` are there."""

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
        while not self._over.wait(_EVERY):
            self._found.append(torch.cuda.utilization(0))

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


@contextmanager
def multi_process_service(folder: Path) -> Iterator[None]:
    """Run NVIDIA's Multi-Process Service, which lets kernels of several processes run at the same time."""
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for name in ("pipe", "log"):
        (folder / name).mkdir(parents=True)
    # The service would number the visible GPUs from 0, and programs choose among its numbers. So it sees all of them.
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, env=environment)
    try:
        yield
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False)


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
