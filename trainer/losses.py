"""Policy losses: small functions from log-probabilities to a loss a token, and how tokens are averaged.

A loss function knows nothing of batches. What a token counts is its weight, which `token_weights` computes from the
whole mini-batch before that is split into micro-batches and ranks: the sum of loss * weight, and so the gradient, does
not depend on how the mini-batch was planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from agentloop.config import Config
from agentloop.errors import UserError, nearest

if TYPE_CHECKING:
    from torch import Tensor


class Aggregation(StrEnum):
    """How the losses of tokens become the loss of a mini-batch."""

    TOKEN_MEAN = "token_mean"
    """Mean over all tokens (DAPO, arXiv 2503.14476)."""
    SEQ_MEAN_TOKEN_SUM = "seq_mean_token_sum"
    """Sum within a trajectory, mean over trajectories."""
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    """Mean within a trajectory, mean over trajectories (GRPO, arXiv 2402.03300)."""
    SEQ_MEAN_TOKEN_SUM_NORM = "seq_mean_token_sum_norm"
    """Sum within a trajectory over a constant, mean over trajectories (Dr. GRPO, arXiv 2503.20783)."""


def token_weights(num_sampled: Sequence[int], how: Aggregation, norm: float = 1.0) -> NDArray[np.float64]:
    """What each sampled token of trajectory i counts, [num_trajectories].

    `num_sampled` has the sampled tokens of every trajectory of the mini-batch; `norm` is the constant of
    `SEQ_MEAN_TOKEN_SUM_NORM`. Raises `ValueError` where a trajectory has none.
    """
    counts = np.asarray(num_sampled, dtype=np.float64)
    if len(counts) and counts.min() < 1:
        raise ValueError("every trajectory of a mini-batch needs at least one sampled token")
    match how:
        case Aggregation.TOKEN_MEAN:
            return np.full(len(counts), 1.0 / max(counts.sum(), 1.0))
        case Aggregation.SEQ_MEAN_TOKEN_SUM:
            return np.full(len(counts), 1.0 / max(len(counts), 1))
        case Aggregation.SEQ_MEAN_TOKEN_MEAN:
            return 1.0 / (counts * len(counts))
        case Aggregation.SEQ_MEAN_TOKEN_SUM_NORM:
            return np.full(len(counts), 1.0 / (max(len(counts), 1) * norm))


LossFn = Callable[["Tensor", "Tensor", "Tensor", Any], "tuple[Tensor, dict[str, Tensor]]"]
"""(logprobs, old_logprobs, advantages, options), tensors [num_tokens], to the loss of each token and, detached, what
else is worth a mean over tokens, [num_tokens] each."""


@dataclass(slots=True, frozen=True)
class Loss:
    """A registered loss."""

    name: str
    function: LossFn
    options: type[Config]
    on_policy: bool
    """Compares with the policy that sampled: needs rollout logprobs, and no advantage means no gradient."""


class NoOptions(Config):
    """This loss has none."""


_REGISTRY: dict[str, Loss] = {}


def register(name: str, options: type[Config] = NoOptions, *, on_policy: bool = True) -> Callable[[LossFn], LossFn]:
    """Decorator: make a loss known under a name, with the type of its options. A name can be taken once."""

    def add(function: LossFn) -> LossFn:
        if name in _REGISTRY:
            raise ValueError(f"the loss {name!r} is registered already")
        _REGISTRY[name] = Loss(name, function, options, on_policy)
        return function

    return add


def get(name: str) -> Loss:
    """The registered loss. Raises `UserError` with the nearest name."""
    if name not in _REGISTRY:
        raise UserError(
            f"There is no loss {name!r}.{nearest(name, _REGISTRY)} Set loss to one of: {', '.join(sorted(_REGISTRY))}."
        )
    return _REGISTRY[name]


def parse_options(loss: Loss, options: Mapping[str, Any]) -> Config:
    """The options of a loss, checked. Raises `UserError`."""
    known = loss.options.model_fields
    if unknown := [key for key in options if key not in known]:
        raise UserError(
            f"The loss {loss.name!r} has no option {unknown[0]!r}.{nearest(unknown[0], known)} "
            f"loss_options may set: {', '.join(known) or 'nothing'}."
        )
    try:
        return loss.options(**options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"loss_options.{where} of the loss {loss.name!r} cannot be used: {first['msg']}.") from error


class PpoOptions(Config):
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """The ratio is clipped at 1 - clip_low."""
    clip_high: float = Field(default=0.28, ge=0)
    """The ratio is clipped at 1 + clip_high; above clip_low it leaves rare tokens room to grow (DAPO's clip-higher)."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bounds the loss of a token with a negative advantage at dual_clip * |advantage| (arXiv 1912.09729); None: no
    bound."""


@register("ppo", PpoOptions)
def ppo(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, options: PpoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate of PPO (arXiv 1707.06347), with clip-higher (arXiv 2503.14476) and dual clip.

    `approx_kl` is the k3 estimate of KL(old || new) from samples of old: r - 1 - log r (joschu.net/blog/kl-approx).
    """
    import torch

    log_ratio = logprobs - old_logprobs
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
    loss = torch.maximum(plain, clipped)
    is_clipped = clipped > plain
    metrics = {"clip_fraction": is_clipped.to(loss.dtype)}
    if options.dual_clip is not None:
        bound = -advantages * options.dual_clip
        is_bound = (advantages < 0) & (loss > bound)
        loss = torch.where(is_bound, bound, loss)
        metrics["dual_clip_fraction"] = is_bound.to(loss.dtype)
    metrics["approx_kl"] = (ratio - 1 - log_ratio).detach()
    metrics["ratio"] = ratio.detach()
    return loss, metrics


@register("sft", on_policy=False)
def sft(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, options: NoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Negative log-likelihood: supervised training on the tokens of the loss mask."""
    return -logprobs, {}
