"""What runs inside of vLLM's worker processes: taking new weights, and ending with the process that owns the engine."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class WeightReceiver:
    """Mixed into vLLM's worker class (`worker_extension_cls`); called through `collective_rpc`."""

    reload_weights: Any
    get_model: Any

    def agentloop_load(self, path: str) -> None:
        """Load Hugging Face names from the safetensors file `path`.

        vLLM's own reload also redoes what it made of the weights after loading them, such as the packed matrices of
        the CPU kernels, and keeps the storage that CUDA graphs captured.
        """
        self.reload_weights(weights_iterator=_tensors(path), is_checkpoint_format=True)
        _pack_tied_heads(self.get_model())

    def agentloop_watch(self, owner: int) -> None:
        """End when process `owner` ends, and end the engine core in between: vLLM outlives a killed owner."""
        threading.Thread(target=_end_with, args=(owner,), name="agentloop-watch", daemon=True).start()


def _pack_tied_heads(model: torch.nn.Module) -> None:
    """A head that shares the matrix of the embedding is given no weights by name, so the reload passes over it, and
    on CPUs it would go on with the copy that was packed from the old ones."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead) and hasattr(layer, "cpu_linear"):
            layer.quant_method.process_weights_after_loading(layer)


def _end_with(owner: int) -> None:
    between = os.getppid()  # the engine core, or the owner itself where the worker lives in the engine core
    try:
        handle = os.pidfd_open(owner)
    except ProcessLookupError:  # over already
        pass
    else:
        select.select([handle], [], [])
    if between not in (1, owner) and os.getppid() == between:
        os.kill(between, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a dict)
            yield name, file.get_tensor(name)
