"""A critic on the FSDP backend: a learner whose head returns values instead of log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.model.attention.packed import PackedRow
from agentloop.trainer.model.head.fused_head import ChunkLoss
from agentloop.trainer.model.image_rows import RowPictures
from agentloop.trainer.model.kernels.allowed_tokens import AllowedTokens
from agentloop.trainer.model.packed_lm import PackedCausalLM, hidden_states


class ValueModel(PackedCausalLM):
    """The backbone of a language model with a value head, whose values are 0 before training."""

    def __init__(self, policy: PackedCausalLM, dtype: torch.dtype) -> None:
        """Replace the head. `dtype` is its dtype: it is trained even if the backbone is frozen in another dtype."""
        backbone: Any = policy.backbone
        super().__init__(backbone)
        self.routing = policy.routing
        hidden_size = backbone.config.get_text_config().hidden_size
        self.value_head = nn.Linear(hidden_size, 1, dtype=dtype)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(
        self,
        input_ids: Tensor,
        row: PackedRow,
        positions: Tensor,
        targets: Tensor,
        temperature: float,
        chunk_loss: ChunkLoss | None = None,
        pictures: RowPictures | None = None,
        units: NDArray[np.int64] | None = None,
        allowed: AllowedTokens | None = None,
    ) -> tuple[None, Tensor, Tensor]:
        """Return the value before each trained token, float32 [num_trained], and zeros instead of entropies."""
        assert chunk_loss is None, "a chunk loss needs log-probabilities"
        self.routing.begin(input_ids.device, row.num_own)
        hidden = hidden_states(self.model, input_ids, row, pictures).index_select(0, positions)
        values = self.value_head(hidden)[:, 0].float().clone()
        return None, values, torch.zeros_like(values)


class FsdpCritic(FsdpLearner):
    """A learner with the loss `value`: `logprobs` returns values, and `Sample.advantage` has their targets."""

    _fuses_head = False

    def _wrap(self, policy: PackedCausalLM) -> PackedCausalLM:
        return ValueModel(policy, getattr(torch, self.config.param_dtype))
