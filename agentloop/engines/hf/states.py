"""States of recurrent layers (Mamba, gated delta nets, convolutions), one for each slot.

The forward method of each recurrent layer is replaced: it splits the packed row of a step, and computes one slot after
another with the state of that slot.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_STEP: ContextVar[tuple[SlotStates, NDArray[np.int64]] | None] = ContextVar("step", default=None)
"""The states, and the slots of the tokens in the current step; None outside of steps."""
_CACHES = ("cache", "cache_params", "past_key_values", "past_key_value")
"""Names of the argument with the state in transformers: "cache" since 5.20, others before."""
_NOT_OURS = ("slot_step", "attention_mask", "conv_mask", "seq_idx", "use_cache", *_CACHES)


class SlotStates:
    """The state of each slot after its `kv_len` tokens. Unlike keys and values, a state cannot be truncated."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._of_slot: dict[int, Any] = {}

    @contextmanager
    def reading(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> Iterator[None]:
        """Use these states in recurrent layers for one step; `rows` and `positions` [tokens] are fields of `SlotStep`.

        Slots whose first token is in the step start with an empty state.
        """
        from transformers import DynamicCache

        for slot in rows[positions == 0].tolist():
            self._of_slot[slot] = DynamicCache(config=self._config)
        token = _STEP.set((self, rows))
        try:
            yield
        finally:
            _STEP.reset(token)

    def of(self, slot: int) -> Any:
        """Return the state of a slot, in the form of a cache of transformers."""
        return self._of_slot[slot]

    def copy(self, source: int, target: int) -> None:
        """Copy the state of slot `source` to `target`."""
        self._of_slot[target] = copy.deepcopy(self._of_slot[source])

    def drop(self) -> None:
        """Free the memory of all states."""
        self._of_slot.clear()


def replace_forward(module: torch.nn.Module) -> None:
    """Make a recurrent layer keep one state per slot. Raises `NotImplementedError` if its forward takes no state."""
    names = inspect.signature(type(module).forward).parameters
    cache = next((name for name in _CACHES if name in names), None)
    if cache is None:
        raise NotImplementedError(f"the recurrent layer {type(module).__name__} takes no state")
    module.forward = partial(_forward, module, cache, "attention_mask" in names)  # type: ignore[method-assign]


def _forward(
    module: torch.nn.Module, cache: str, takes_mask: bool, /, hidden_states: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    forward = type(module).forward
    step = _STEP.get()
    if step is None:
        return forward(module, hidden_states, *args, **kwargs)
    states, rows = step
    own = {name: value for name, value in kwargs.items() if name not in _NOT_OURS}
    own |= {"attention_mask": None} if takes_mask else {}
    num_tokens = len(rows)
    starts = [0, *(np.flatnonzero(np.diff(rows)) + 1).tolist(), num_tokens]
    outputs = []
    for start, end in pairwise(starts):
        part = {name: _cut(value, start, end, num_tokens) for name, value in own.items()}
        state = {cache: states.of(int(rows[start]))}
        outputs.append(forward(module, hidden_states[:, start:end], **part, **state))
    if isinstance(outputs[0], tuple):
        return (torch.cat([output[0] for output in outputs], dim=1), *outputs[0][1:])
    return torch.cat(outputs, dim=1)


def _cut(value: Any, start: int, end: int, num_tokens: int) -> Any:
    """Return the part of an argument that belongs to the tokens `start:end`."""
    if isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[1] == num_tokens:
        return value[:, start:end]
    return tuple(_cut(part, start, end, num_tokens) for part in value) if isinstance(value, tuple) else value
