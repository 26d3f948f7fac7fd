"""What runs inside of vLLM's worker processes: taking new weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class WeightReceiver:
    """Mixed into vLLM's worker class (`worker_extension_cls`); called through `collective_rpc`."""

    reload_weights: Any

    def agentloop_load(self, path: str) -> None:
        """Load Hugging Face names from the safetensors file `path`.

        vLLM's own reload also redoes what it made of the weights after loading them, such as the packed matrices of
        the CPU kernels, and keeps the storage that CUDA graphs captured.
        """
        self.reload_weights(weights_iterator=_tensors(path), is_checkpoint_format=True)


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a dict)
            yield name, file.get_tensor(name)
