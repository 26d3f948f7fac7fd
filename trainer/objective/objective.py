"""`Objective`: maps log-probabilities and entropies of a micro-batch's trained tokens to its loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError, WrongTypeError, named, shown
from agentloop.trainer import corrections, losses
from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.batch.trained_tokens import TrainedTokens, check_per_token
from agentloop.trainer.objective.kl import kl_estimate

if TYPE_CHECKING:
    from torch import Tensor


class Objective:
    """The loss of a `LearnerConfig`, a pure function that does not depend on how tokens are packed.

    Creating it raises `UserError` for unknown or contradictory names and options.
    """

    def __init__(self, config: LearnerConfig) -> None:
        self.config = config
        self.loss = losses.get(config.loss)
        self.loss_options = losses.parse_options(self.loss, config.loss_options)
        found = [(corrections.get(part.name), part.options) for part in config.corrections]
        self._corrections = [(part, corrections.parse_options(part, options)) for part, options in found]
        self._old = config.old_logprobs
        if self._old == "auto":
            self._old = "learner" if self._corrections else "rollout"
        if self._corrections and self._old == "rollout":
            raise UserError(
                "learner.corrections compare learner.old_logprobs with the sampling policy, but with "
                "old_logprobs=rollout the two are the same. Remove old_logprobs, or set it to learner or interpolated."
            )
        if self._corrections and not self.loss.on_policy:
            raise UserError(
                f"learner.corrections need a loss that compares with the sampling policy, but loss={self.loss.name} "
                "does not. Remove learner.corrections."
            )

    @property
    def is_tokenwise(self) -> bool:
        """Whether the loss of a token depends only on that token.

        If so, the loss can be computed in any pieces (`TrainedTokens.rows`) and is their sum.
        """
        return self.loss.tokenwise and all(part.tokenwise(options) for part, options in self._corrections)

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether `Sample.old_logprobs` must be computed by a pass before the first of several updates on a batch.

        With one update per batch they equal the current log-probabilities.
        """
        return self.loss.on_policy and self._old == "learner" and self.config.mini_batches > 1

    @property
    def needs_reference(self) -> bool:
        """Whether `Sample.reference_logprobs` must be computed."""
        return self.config.kl_coef > 0 or self.loss.needs_reference

    @property
    def is_zero_without_advantage(self) -> bool:
        """Whether a trajectory with advantage 0 has no gradient, so that its pass can be skipped."""
        return self.loss.on_policy and self.config.entropy_bonus == 0 and self.config.kl_coef == 0

    def weights(self, samples: Sequence[Sample]) -> NDArray[np.float64]:
        """Return the weight of each sampled token of sample i of a whole mini-batch, [num_samples]."""
        config = self.config
        return losses.token_weights(
            [sample.num_sampled for sample in samples],
            config.aggregation or self.loss.aggregation,
            config.aggregation_norm,
            episodes=[sample.episode for sample in samples],
        )

    def __call__(self, logprobs: Tensor, entropy: Tensor, tokens: TrainedTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and the metrics of tokens from their log-probabilities and entropies, [num_trained] each.

        The loss is the sum of loss * weight, differentiable in both. The metrics are detached, [num_trained] each.
        """
        config = self.config
        old = self._old_logprobs(logprobs, tokens)
        token_loss, metrics = self._token_loss(logprobs, old, tokens)
        metrics["entropy"] = entropy.detach()
        if self._corrections:
            weight = self._correction(old - tokens.rollout_logprobs, tokens)
            token_loss = token_loss * weight
            metrics |= {"importance_weight": weight, "rejected": (weight == 0).to(weight.dtype)}
        if config.kl_coef > 0:
            assert tokens.reference_logprobs is not None, "needs_reference"
            kl = kl_estimate(logprobs, tokens.reference_logprobs, config.kl_estimator)
            token_loss = token_loss + config.kl_coef * kl
            metrics["reference_kl"] = kl.detach()
        if config.entropy_bonus > 0:
            token_loss = token_loss - config.entropy_bonus * entropy
        return (token_loss * tokens.weights).sum(), metrics

    def of_rows(self, tokens: TrainedTokens, logprobs: Tensor, entropy: Tensor, rows: slice) -> Tensor:
        """Return the loss of the tokens `rows`; `logprobs` and `entropy` are only of these tokens.

        Rows may be any tokens if the objective is tokenwise, or else all tokens of some trajectories.
        """
        part = tokens.rows(rows) if self.is_tokenwise else tokens.trajectories(rows)
        return self(logprobs, entropy, part)[0]

    def _old_logprobs(self, logprobs: Tensor, tokens: TrainedTokens) -> Tensor:
        if not self.loss.on_policy or self._old == "rollout":
            return tokens.rollout_logprobs
        if self._old == "interpolated":
            return corrections.interpolated_logprobs(logprobs, tokens)
        if tokens.old_logprobs is not None:
            return tokens.old_logprobs
        assert not self.needs_old_logprobs
        return logprobs.detach()  # with one update per batch, the current weights are the old weights

    def _token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and its metrics. Raises `WrongTypeError` if the user's loss returned something else."""
        function = self.loss.function
        found: object = function(logprobs, old_logprobs, tokens, self.loss_options)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
            raise WrongTypeError(
                f"{named(function)} returned {shown(found)}. Return a pair: the loss, a dict of metrics."
            )
        loss, metrics = found
        check_per_token(loss, logprobs, function, "loss")
        for name, values in metrics.items():
            check_per_token(values, logprobs, function, f"metric {name!r}")
        return loss, metrics

    def _correction(self, log_ratio: Tensor, tokens: TrainedTokens) -> Tensor:
        weight = log_ratio.new_ones(len(log_ratio))
        for part, options in self._corrections:
            found = part.function(log_ratio.detach(), tokens, options)
            check_per_token(found, log_ratio, part.function, "weight")
            weight = weight * found
        return weight
