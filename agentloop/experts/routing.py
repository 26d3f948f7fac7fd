"""Record which experts the routers of a model choose, or replay the choices of another computation.

A router scores all experts for each token and takes the k best (`torch.topk`). Replay replaces only the result of this
call; all other router code of transformers runs unchanged. So every family computes the gate weights of replayed
experts in its own way, and their gradient reaches the router (R3, arXiv 2510.11370).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from agentloop.errors import UserError

_LAYER = re.compile(r"\blayers\.(\d+)\.")


class Choice(NamedTuple):
    """Experts of the tokens of one layer; both tensors are int64 [num_tokens, k]."""

    own: Tensor
    """Experts that the router would have chosen."""
    used: Tensor
    """Experts that processed the tokens."""


def prepare(model: nn.Module) -> dict[int, nn.Module]:
    """Instrument all routers of a model; return decoder layer index -> MoE block.

    Call `set_replayed` before the forward of a block, and `take_choice` after it. Layers without a router have no
    entry; nor do families whose experts do not use the interface of transformers.
    """
    blocks: dict[int, nn.Module] = {}
    for name, module in list(model.named_modules()):
        found = _LAYER.search(f"{name}.")
        if found is not None and is_experts(getattr(module, "experts", None)):
            blocks[int(found[1])] = module
            if not hasattr(module, "replayed_experts"):
                kind: Any = type(module)
                module.__class__ = _observed(kind)
            set_replayed(module, None)
    return blocks


def num_experts(block: Any) -> int:
    """Return the number of experts of a block."""
    return int(block.experts.num_experts)


def set_replayed(block: Any, experts: Tensor | None) -> None:
    """Make the next forward of a block use `experts`, integers [num_tokens, k]; -1 leaves the choice to the router."""
    block.replayed_experts = experts


def take_choice(block: Any) -> Choice:
    """Return the choice of the last forward of a block. Raises `UserError` if its router does not choose with topk."""
    if (found := take_choice_if_seen(block)) is None:
        raise UserError(
            f"The experts that {type(block).__name__} chooses cannot be recorded: its router does not call torch.topk "
            "on the scores of its experts. Remove learner.router_replay, or train another model."
        )
    return found


def take_choice_if_seen(block: Any) -> Choice | None:
    """Return the choice of the last forward of a block; None if its router does not choose with topk."""
    found, block.chosen_experts = block.chosen_experts, ()
    block.replayed_experts = None
    return Choice(*found[-2:]) if found else None


def is_experts(module: object) -> bool:
    """Return whether a module holds the weights of experts as transformers' `use_experts_implementation` marks them."""
    return isinstance(module, nn.Module) and hasattr(module, "is_transposed") and hasattr(module, "num_experts")


@cache
def _observed(kind: type[nn.Module]) -> type[nn.Module]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        found: list[Tensor] = []
        with _TopK(num_experts(self), self.replayed_experts, found):
            out = kind.forward(self, *args, **kwargs)
        self.chosen_experts = tuple(found)
        return out

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


class _Best(NamedTuple):
    """The result of `torch.topk`."""

    values: Tensor
    indices: Tensor


class _TopK(TorchFunctionMode):
    """Replaces the top-k of `num_experts` scores by the scores of the replayed experts, and records both choices."""

    def __init__(self, num_experts: int, replayed: Tensor | None, found: list[Tensor]) -> None:
        super().__init__()
        self.num_experts, self.replayed, self.found = num_experts, replayed, found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is not torch.topk and func is not Tensor.topk:
            return out
        scores, own = args[0], out[1]
        # Routers that first choose groups of experts call topk on other shapes, too.
        if scores.dim() != 2 or scores.shape[1] != self.num_experts:
            return out
        if self.replayed is None:
            self.found += [own, own]
            return out
        replayed = self.replayed.to(own.dtype)
        used = torch.where(replayed >= 0, replayed, own)
        self.found += [own, used]
        return _Best(scores.gather(1, used), used)
