"""Recurrent layers without a kernel for packed rows get the sequences of a row as padded batches.

The code of transformers would carry their state from one sequence of a row into the next. They are causal, so padding
after the end of a sequence changes nothing in it. This runs on any device and for any layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from agentloop.trainer.model.attention.padded_layout import PaddedLayout

_LAYOUT: ContextVar[PaddedLayout | None] = ContextVar("layout", default=None)
"""Layout of the row that a decoder layer computes; None outside of packed rows."""
_OF_ROWS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "padded", "num_tokens")
"""Keyword arguments of `PackedRow.kwargs` that describe a row; a padded batch has none of them."""
_NONE = ("attention_mask", "conv_mask", "seq_idx")
"""Keyword arguments that a padded batch does not need."""


def prepare(modules: Iterable[nn.Module]) -> None:
    """Let recurrent layers read padded batches; the decoder layers have to run inside `reading`."""
    for module in modules:
        module.forward = partial(_forward, module)  # type: ignore[method-assign]


@contextmanager
def reading(layout: PaddedLayout | None) -> Iterator[None]:
    """Divide the rows of recurrent layers into the sequences of `layout`."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


def _forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call the module with each padded batch of sequences, and return its outputs as those of the row."""
    forward = type(module).forward
    layout = _LAYOUT.get()
    if layout is None:
        return forward(module, *args, **kwargs)
    own = {name: None if name in _NONE else value for name, value in kwargs.items() if name not in _OF_ROWS}
    leaves, structure = pytree.tree_flatten((args, own))
    num_tokens = len(layout.place)
    batches = [layout.batches(leaf[0]) if _is_row(leaf, (1, num_tokens)) else leaf for leaf in leaves]
    outputs = []
    for number in range(len(layout.shapes)):
        part_args, part_kwargs = pytree.tree_unflatten(
            [batch[number] if isinstance(batch, tuple) else batch for batch in batches], structure
        )
        outputs.append(forward(module, *part_args, **part_kwargs))
    return _joined(outputs, layout)


def _joined(outputs: Sequence[Any], layout: PaddedLayout) -> Any:
    parts, structures = zip(*map(pytree.tree_flatten, outputs), strict=True)
    rows = []
    for leaves in zip(*parts, strict=True):
        if all(_is_row(leaf, shape) for leaf, shape in zip(leaves, layout.shapes, strict=True)):
            rows.append(layout.unpad(torch.cat([leaf.flatten(0, 1) for leaf in leaves]))[None])
        else:
            rows.append(leaves[0])
    return pytree.tree_unflatten(rows, structures[0])


def _is_row(value: object, shape: tuple[int, int]) -> bool:
    return isinstance(value, Tensor) and value.shape[:2] == shape
