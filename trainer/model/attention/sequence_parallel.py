"""Ulysses sequence parallelism (arXiv 2309.14509): ranks share the tokens of a row, and in attention its heads.

    layers:     rank r has tokens [r * n / size, (r + 1) * n / size) of a row, all heads
    attention:  rank r has all n tokens, heads [r * heads / size, (r + 1) * heads / size)

Two exchanges per layer convert between these, in forward and backward. The result equals that of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group

from agentloop.errors import UserError


@dataclass(slots=True, frozen=True)
class SequenceGroup:
    """The ranks that share a row."""

    name: str
    """Name of the group in torch.distributed."""
    rank: int
    """Rank of this process in the group."""
    size: int

    def own(self, num_tokens: int) -> slice:
        """Return the tokens of a row on this rank; all ranks except the last ones have `length` of them."""
        length = self.length(num_tokens)
        return slice(min(self.rank * length, num_tokens), min((self.rank + 1) * length, num_tokens))

    def length(self, num_tokens: int) -> int:
        """Return the tokens of each rank, including the padding of the last ones."""
        return -(-num_tokens // self.size)

    def check(self, hf_config: Any) -> None:
        """Check that the heads of a model can be divided. Raises `UserError`."""
        config = hf_config.get_text_config()
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        if heads % self.size or (kv_heads % self.size and self.size % kv_heads):
            fit = [n for n in range(2, heads + 1) if not heads % n and not (kv_heads % n and n % kv_heads)]
            raise UserError(
                f"learner.sequence_parallel={self.size} cannot divide {heads} heads and {kv_heads} key-value heads. "
                f"This model supports {', '.join(map(str, fit)) or 'none'}."
            )
        if getattr(hf_config, "vision_config", None) is not None:
            raise UserError(
                "learner.sequence_parallel supports only text, but this model has a vision tower. Remove the setting."
            )

    def to_heads(self, query: Tensor, key: Tensor, value: Tensor, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Convert own tokens [length, heads, d] and [length, kv_heads, d] to own heads of the row, [num_tokens, .., d].

        If there are fewer heads of keys and values than ranks, several ranks have the same one.
        """
        if key.shape[1] < self.size:
            copies = self.size // key.shape[1]
            key, value = key.repeat_interleave(copies, dim=1), value.repeat_interleave(copies, dim=1)
        parts = [tensor.unflatten(1, (self.size, -1)).transpose(0, 1) for tensor in (query, key, value)]
        # Heads are flattened, because in latent attention those of values have another size.
        rows = self._exchange(torch.cat([part.flatten(2) for part in parts], dim=2)).flatten(0, 1)[:num_tokens]
        found = rows.split([part.shape[2] * part.shape[3] for part in parts], dim=1)
        query, key, value = (row.unflatten(1, part.shape[2:]) for row, part in zip(found, parts, strict=True))
        return query, key, value

    def to_tokens(self, rows: Tensor, length: int) -> Tensor:
        """Convert own heads of the row [num_tokens, heads / size, d] to all heads of own tokens, [length, heads, d]."""
        missing = self.size * length - rows.shape[0]
        padded = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
        return self._exchange(padded.unflatten(0, (self.size, length))).transpose(0, 1).flatten(1, 2)

    def assemble(self, values: Tensor, places: Tensor, size: int) -> Tensor:
        """Return [size] values collected from all ranks; `places` are those of this rank's `values`.

        The gradient of a rank's values is that of its own result, because all ranks compute the same with it.
        """
        whole: Tensor = _Assemble.apply(values, places, size, self.name)
        return whole

    def _exchange(self, blocks: Tensor) -> Tensor:
        """Send block i of [size, ...] to rank i; block i of the result comes from rank i."""
        found: Tensor = exchange_blocks(blocks.contiguous(), self.name)
        return found


def _group(name: str) -> dist.ProcessGroup:
    found: dist.ProcessGroup = _resolve_process_group(name)  # type: ignore[arg-type]
    return found


@torch.library.custom_op("agentloop::exchange_blocks", mutates_args=())
def exchange_blocks(blocks: Tensor, group: str) -> Tensor:
    """Exchange contiguous blocks between ranks, as one node for torch.compile."""
    found = torch.empty_like(blocks)
    dist.all_to_all_single(found, blocks, group=_group(group))
    return found


@exchange_blocks.register_fake
def _(blocks: Tensor, group: str) -> Tensor:
    return torch.empty_like(blocks)


def _keep(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    ctx.group = inputs[1]


def _back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return exchange_blocks(grad.contiguous(), ctx.group), None


exchange_blocks.register_autograd(_back, setup_context=_keep)


class _Assemble(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, size: int, group: str) -> Tensor:
        ctx.save_for_backward(places)
        whole = values.new_zeros(size).index_copy_(0, places, values.detach())
        dist.all_reduce(whole, group=_group(group))
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (places,) = ctx.saved_tensors
        return grad.index_select(0, places), None, None, None
