"""A vLLM worker beside others on one GPU, which all start at the same time."""

from __future__ import annotations

import torch
from vllm.v1.worker.gpu_worker import Worker

_OUTSIDE_TORCH = 2 << 30
"""Bytes: CUDA's context, the graphs that are captured after the cache is made, workspaces of libraries."""


class SharingWorker(Worker):  # type: ignore[misc]
    """vLLM takes for its own whatever disappears from the GPU's free memory while it starts, and gives up where some
    comes back. This one counts what its own process allocates, and keeps to `gpu_memory_utilization` of the whole."""

    def determine_available_memory(self) -> int:
        """Bytes for the cache of keys and values."""
        if self.cache_config.kv_cache_memory_bytes:
            return int(super().determine_available_memory())
        self.model_runner.profile_run()
        taken = torch.cuda.max_memory_allocated(self.device) + _OUTSIDE_TORCH
        left = int(self.requested_memory) - taken
        if left <= 0:
            share = self.cache_config.gpu_memory_utilization
            raise ValueError(
                f"gpu_memory_utilization={share} is {self.requested_memory >> 30} GiB of this GPU, and the model needs "
                f"{taken >> 30} GiB without any cache. Give each worker a larger part of a GPU (workers.gpus), or "
                "lower max_num_seqs or max_num_batched_tokens in engine.options."
            )
        return left
