"""Let vLLM's reload see weights that a model copies into its parameters without their loaders, as gpt-oss does.

vLLM reloads layer by layer: parameters are on the meta device until their loaders have got all weights of a layer. A
copy to such a parameter has no effect, and the old weights stay without an error (vLLM 0.32).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_DATA: Any = torch.Tensor.data.__get__  # type: ignore[attr-defined]


@contextmanager
def seen_by_reload(model: nn.Module) -> Iterator[None]:
    """Pass copies to parameters of `model` on the meta device to vLLM's reload, within the context."""
    layerwise: Any = importlib.import_module("vllm.model_executor.model_loader.reload.layerwise")
    mode = _DirectCopies(model, layerwise)
    count = layerwise.get_numel_loaded

    def counted(*args: Any, **kwargs: Any) -> Any:
        # The reload runs loaders on the meta device to count what they load.
        with mode.paused():
            return count(*args, **kwargs)

    for parameter in model.parameters():
        if isinstance(loader := getattr(parameter, "weight_loader", None), partial):
            vars(loader)["__name__"] = "partial"  # the reload reads the name of each loader (MiniMax M2)
    layerwise.get_numel_loaded = counted
    try:
        with mode:
            yield
    finally:
        layerwise.get_numel_loaded = count


class _DirectCopies(TorchFunctionMode):
    """Replaces `parameter.copy_(weight)` and `parameter.data.copy_(weight)` by a call of the parameter's loader."""

    def __init__(self, model: nn.Module, layerwise: Any) -> None:
        super().__init__()
        self._model, self._layerwise = model, layerwise
        self._owners: dict[int, tuple[nn.Module, str]] = {}
        self._aliases: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Identity of the result of `parameter.data` -> the result, which keeps the identity in use, and parameter."""
        self._is_paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_paused or not isinstance(args[0] if args else None, torch.Tensor):
            return func(*args, **kwargs)
        if func == _DATA and args[0].is_meta:
            out = func(*args, **kwargs)
            self._aliases[id(out)] = out, args[0]
            return out
        if func is torch.Tensor.copy_ and args[0].is_meta and not args[1].is_meta:
            alias = self._aliases.get(id(args[0]))
            parameter = args[0] if alias is None else alias[1]
            if (owner := self._owner(parameter)) is not None:
                self._load(*owner, parameter, args[1])
                return args[0]
        return func(*args, **kwargs)

    def _owner(self, parameter: torch.Tensor) -> tuple[nn.Module, str] | None:
        """Return the module and the name of a parameter. The reload replaces parameters, so the table is made late."""
        found = self._owners.get(id(parameter))
        if found is None or getattr(found[0], found[1], None) is not parameter:
            self._owners = {
                id(each): (module, name)
                for module in self._model.modules()
                for name, each in module.named_parameters(recurse=False)
            }
        return self._owners.get(id(parameter))

    def _load(self, owner: nn.Module, name: str, parameter: Any, weight: torch.Tensor) -> None:
        layerwise = self._layerwise
        if layerwise._get_original_loader(parameter) is not _copy_whole:
            parameter.weight_loader = _copy_whole
            parameter.weight_loader = layerwise.make_online_process_loader(owner, name)
        with self.paused():
            parameter.weight_loader(parameter, weight)


def _copy_whole(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    param.data.copy_(loaded_weight)
