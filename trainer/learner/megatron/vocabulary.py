"""The softmax of the LM head if ranks split the vocabulary: it merges a few numbers per token.

With l_i, h_i the log-sum-exp and entropy of rank i's logits and w_i = exp(l_i - l):
    l = log sum_i exp l_i,  entropy = sum_i w_i (h_i + l - l_i)
The gradient of a rank's logits needs only these (`kernels.softmax`), so ranks never send logits.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from agentloop.trainer.model.kernels import softmax
from agentloop.trainer.model.kernels.allowed_tokens import AllowedTokens
from agentloop.trainer.model.kernels.softmax import Statistics


class VocabularyShard:
    """Replaces the module `kernels.softmax` for logits of this rank's part of the vocabulary."""

    def __init__(self, group: dist.ProcessGroup, size: int) -> None:
        """Set the group; `size` is the number of vocabulary tokens on each rank."""
        self._group = group
        self._size = size
        self._start = dist.get_rank(group) * size

    def statistics(
        self, logits: Tensor, targets: Tensor, inverse_temperature: float, allowed: AllowedTokens | None = None
    ) -> Statistics:
        """Return the statistics over the whole vocabulary; `targets` are its ids, `logits` are [num_tokens, size]."""
        local = self._local(targets)
        part = softmax.statistics(logits, local.clamp(min=0), inverse_temperature, self._own(allowed))
        target = torch.where(local >= 0, part.logprob + part.lse, 0.0)
        mine = torch.stack([part.lse, part.entropy, target])
        everywhere = mine.new_empty(dist.get_world_size(self._group), *mine.shape)
        dist.all_gather_into_tensor(everywhere.view(-1), mine.view(-1), group=self._group)
        lses, entropies, found = everywhere.unbind(1)
        lse = torch.logsumexp(lses, dim=0)
        entropy = ((lses - lse).exp() * (entropies + lse - lses)).sum(dim=0)
        return Statistics(found.sum(dim=0) - lse, entropy, lse)

    def gradient_(
        self,
        logits: Tensor,
        targets: Tensor,
        found: Statistics,
        grad_logprob: Tensor,
        grad_entropy: Tensor | None,
        inverse_temperature: float,
        allowed: AllowedTokens | None = None,
    ) -> Tensor:
        """Compute the gradient of this rank's logits as `softmax.gradient_` does."""
        local = self._local(targets)
        own = self._own(allowed)
        return softmax.gradient_(logits, local, found, grad_logprob, grad_entropy, inverse_temperature, own)

    def _own(self, allowed: AllowedTokens | None) -> AllowedTokens | None:
        return None if allowed is None else allowed.part(self._start)

    def _local(self, targets: Tensor) -> Tensor:
        """Return ids relative to this rank's first id; -1 for ids of other ranks."""
        local = targets - self._start
        return torch.where((local >= 0) & (local < self._size), local, -1)
