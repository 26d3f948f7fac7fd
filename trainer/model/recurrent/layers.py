"""Prepare the recurrent layers of a model: by a kernel for packed rows if there is one, else over padded batches."""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from torch import nn

from agentloop.trainer.model.recurrent import packed, padded, tuning
from agentloop.vision.loading import recurrent_modules

_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """The recurrent layers of a model."""

    any: bool
    padded: bool
    """Whether some of them read padded batches: rows then need `PackedRow.padded`, and layers are not compiled."""


def prepare(model: nn.Module, *, kernels: bool) -> Found:
    """Reset the state of recurrent layers at the start of each sequence of a row.

    Without `kernels` all of them read padded batches. Otherwise the log names those that have to, and why.
    """
    modules = recurrent_modules(model)
    reason = packed.obstacle()
    rest = [module for module in modules if not packed.prepare(module, kernels=kernels and reason is None)]
    padded.prepare(rest)
    if kernels and len(rest) < len(modules) and torch.cuda.is_available():
        tuning.compile_variants_in_parallel()
    if kernels and rest:
        kinds = ", ".join(sorted({type(module).__name__ for module in rest}))
        _log.warning(
            "The layers %s read sequences as padded batches and are not compiled, which is slow: %s.",
            kinds,
            reason or "they have no kernel for packed rows",
        )
    return Found(bool(modules), bool(rest))
