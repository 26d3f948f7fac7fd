"""`SharingWorker`: a vLLM worker that shares its GPU with other workers that start at the same time."""

from __future__ import annotations

import torch
from vllm.v1.worker.gpu_worker import Worker

_OUTSIDE_TORCH = 2 << 30
"""Bytes reserved for the CUDA context, graphs captured after the cache is allocated, and workspaces of libraries."""


class SharingWorker(Worker):  # type: ignore[misc]
    """Counts only the memory of this process, and uses at most `gpu_memory_utilization` of the GPU.

    vLLM's own worker counts all memory that is allocated on the GPU while it starts, and fails if some is freed.
    """

    def determine_available_memory(self) -> int:
        """Return the number of bytes for the KV cache."""
        if self.cache_config.kv_cache_memory_bytes:
            return int(super().determine_available_memory())
        self.model_runner.profile_run()
        taken = torch.cuda.max_memory_allocated(self.device) + _OUTSIDE_TORCH
        left = int(self.requested_memory) - taken
        if left <= 0:
            share = self.cache_config.gpu_memory_utilization
            raise ValueError(
                f"gpu_memory_utilization={share} is {self.requested_memory >> 30} GiB of this GPU, but the model needs "
                f"{taken >> 30} GiB without any cache. Set workers.gpus to a larger fraction, or "
                "lower max_num_seqs or max_num_batched_tokens in engine.options."
            )
        return left
