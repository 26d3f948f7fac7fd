"""The LM head after the last stage: log-probabilities and loss of this rank's trained tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from torch import Tensor

from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.learner.megatron.micro import RankMicroBatch
from agentloop.trainer.learner.megatron.model import Stage
from agentloop.trainer.learner.megatron.ranks import Ranks
from agentloop.trainer.learner.megatron.vocabulary import VocabularyShard
from agentloop.trainer.model.head.fused_head import head_loss
from agentloop.trainer.model.head.logprobs import token_logprobs
from agentloop.trainer.model.kernels import softmax
from agentloop.trainer.model.kernels.softmax import Vocabulary
from agentloop.trainer.objective.objective import Objective


class Head:
    """Computes log-probabilities and losses of one model on these ranks."""

    def __init__(self, model: Stage, ranks: Ranks, temperature: float) -> None:
        self._weight = model.head_weight() if ranks.is_last_stage else None
        self._ranks = ranks
        self._temperature = temperature
        self._vocabulary: Vocabulary = softmax
        if ranks.tensor > 1 and self._weight is not None:
            self._vocabulary = VocabularyShard(ranks.tensor_group, len(self._weight))

    def logprobs(self, hidden: Tensor, micro: RankMicroBatch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of the output of `PackedGpt`, float32 [own trained tokens]."""
        assert self._weight is not None
        return token_logprobs(
            self._chosen(hidden, micro),
            self._weight,
            micro.targets,
            temperature=self._temperature,
            vocabulary=self._vocabulary,
            allowed=micro.allowed,
        )

    def loss(
        self, hidden: Tensor, micro: RankMicroBatch, objective: Objective
    ) -> tuple[Tensor, Tensor, TrainedTokens, dict]:
        """Return the loss, the log-probabilities, their tokens, and metrics of these tokens.

        If the loss needs whole sequences, ranks with slices of a row exchange log-probabilities, and each computes the
        loss of the whole row.
        """
        if objective.is_tokenwise or self._ranks.context == 1:
            tokens = micro.tokens.rows(micro.own)
            assert self._weight is not None
            loss, logprobs, entropy = head_loss(
                self._chosen(hidden, micro),
                self._weight,
                micro.targets,
                partial(objective.of_rows, tokens),
                temperature=self._temperature,
                units=None if objective.is_tokenwise else tokens.sizes,
                vocabulary=self._vocabulary,
                allowed=micro.allowed,
            )
            with torch.no_grad():
                return loss, logprobs, tokens, objective(logprobs, entropy, tokens)[1]
        parts = self.logprobs(hidden, micro)
        logprobs, entropy = (_of_the_row(part, micro, self._ranks) for part in parts)
        loss, metrics = objective(logprobs, entropy, micro.tokens)
        return loss, logprobs.detach(), micro.tokens, metrics

    def _chosen(self, hidden: Tensor, micro: RankMicroBatch) -> Tensor:
        """Return the states that predict this rank's trained tokens, [own trained tokens, hidden].

        In the backward pass each rank has the gradient of its part of the vocabulary; scattering the tokens sums them.
        """
        if self._ranks.tensor > 1:
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
        return hidden[:, 0].index_select(0, micro.places)


def _of_the_row(part: Tensor, micro: RankMicroBatch, ranks: Ranks) -> Tensor:
    if ranks.context == 1:
        return part
    whole: Tensor = _FromSlices.apply(part, micro.own, len(micro.tokens), ranks.context_group)
    return whole


class _FromSlices(torch.autograd.Function):
    """Gathers the token values of all slices.

    Every rank computes the same loss from them, so each keeps the gradient of its own slice.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, own: slice, size: int, group: dist.ProcessGroup) -> Tensor:
        ctx.own = own
        whole = part.new_zeros(size)
        whole[own] = part
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return grad[ctx.own], None, None, None
