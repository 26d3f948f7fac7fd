"""Turn the weights of a transformers model into those of its checkpoint, which is what vLLM loads.

For most families they are the same. A mixture of experts has one parameter for all experts of a layer, but its
checkpoint has two or three for each expert, and often a bias of the router that is not trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.vision.processor import FAMILIES

if TYPE_CHECKING:
    import torch

_LAYER = re.compile(r"\blayers\.\d+\.")


class CheckpointNames:
    """Converts the weights of one model, given by its folder or by its name on the hub."""

    def __init__(self, model: str | Path) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
        from transformers.conversion_mapping import get_model_conversion_mapping

        config = AutoConfig.from_pretrained(model)
        kind: Any = AutoModelForImageTextToText if config.model_type in FAMILIES else AutoModelForCausalLM
        with torch.device("meta"):
            self._model = kind.from_config(config)
        self._source = model
        self._is_same = not get_model_conversion_mapping(self._model, add_legacy=False)
        trained = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        buffers = ((name, each) for name, each in self._model.state_dict().items() if name not in trained)
        self._buffers = {name: tuple(each.shape) for name, each in self._renamed(buffers)}

    @property
    def are_same(self) -> bool:
        """Whether the checkpoint has the weights under the names of transformers, and no others."""
        return self._is_same and not self._buffers

    def converted(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all tensors of the checkpoint: `weights`, and the buffers of the files, layer by layer.

        Tensors are views of `weights` if possible, else copies of those of one layer.
        """
        left = dict(self._buffer_values)
        for layer, group in groupby(weights, key=lambda pair: _layer_of(pair[0])):
            yield from self._renamed(group)
            for name in [name for name in left if _layer_of(name) == layer]:
                yield name, left.pop(name)
        yield from left.items()

    def shapes(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return names and shapes as in the checkpoint, those of buffers included."""
        import torch

        tensors = ((name, torch.empty(shape, device="meta")) for name, shape in shapes.items())
        renamed = (
            group for _, layer in groupby(tensors, lambda pair: _layer_of(pair[0])) for group in self._renamed(layer)
        )
        return {name: tuple(tensor.shape) for name, tensor in renamed} | self._buffers

    def _renamed(self, layer: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        if self._is_same:
            yield from layer
            return
        from transformers.core_model_loading import revert_weight_conversion

        yield from revert_weight_conversion(self._model, dict(layer)).items()

    @cached_property
    def _buffer_values(self) -> dict[str, torch.Tensor]:
        from safetensors import safe_open

        found: dict[str, torch.Tensor] = {}
        if not self._buffers:
            return found
        folder = Path(self._source)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(str(self._source), local_files_only=True))
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, "pt") as tensors:
                found |= {name: tensors.get_tensor(name) for name in tensors.keys() if name in self._buffers}  # noqa: SIM118
        return found


def _layer_of(name: str) -> str:
    found = _LAYER.search(name)
    return name[: found.end()] if found else ""
