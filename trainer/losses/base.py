"""Registry of losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentloop.config.learner import Aggregation
from agentloop.registry import options as registry_options
from agentloop.registry.options import Config, NoOptions
from agentloop.registry.registry import Registry, registering
from agentloop.trainer.batch.trained_tokens import TrainedTokens

if TYPE_CHECKING:
    from torch import Tensor

LossFn = Callable[["Tensor", "Tensor", TrainedTokens, Any], "tuple[Tensor, dict[str, Tensor]]"]
"""(logprobs, old_logprobs, tokens, options) -> (loss, metrics), all tensors [num_trained]; metrics are detached.

Ratios are exp(logprobs - old_logprobs). Metrics are averaged over tokens.
"""


@dataclass(slots=True, frozen=True)
class Loss:
    """A registered loss."""

    name: str
    function: LossFn
    options: type[Config]
    on_policy: bool
    """Whether it compares with the sampling policy. If so, it needs rollout logprobs, and has no gradient at advantage
    0."""
    tokenwise: bool
    """Whether the loss of a token depends only on that token, so that it can be computed in any pieces."""
    needs_reference: bool
    """Whether it needs `TrainedTokens.reference_logprobs`."""
    aggregation: Aggregation
    """Default aggregation, as in the paper."""
    auxiliary_of: str | None = None
    """Advantage whose auxiliary model it trains; a config cannot use it as the loss of the policy."""
    pairwise: bool = False
    """Whether it compares the answers of a pair, which share `Sample.episode`. It needs `TrainedTokens.rivals`."""


_LOSSES: Registry[Loss] = Registry("loss", "learner.loss", own="registration")


def register(
    name: str,
    options: type[Config] = NoOptions,
    *,
    on_policy: bool = True,
    tokenwise: bool = True,
    needs_reference: bool = False,
    aggregation: Aggregation = Aggregation.TOKEN_MEAN,
    auxiliary_of: str | None = None,
    pairwise: bool = False,
) -> Callable[[LossFn], LossFn]:
    """Return a decorator that registers a loss under a new name, with the type of its options."""

    def make(function: LossFn) -> Loss:
        whole = tokenwise, needs_reference, aggregation
        return Loss(name, function, options, on_policy, *whole, auxiliary_of, pairwise)

    return registering(_LOSSES, name, make, offered=auxiliary_of is None and not pairwise)


def get(name: str) -> Loss:
    """Return the registered loss. Raises `UserError` with the nearest name for unknown names."""
    return _LOSSES.get(name)


def names() -> list[str]:
    """Return the names of all registered losses."""
    return sorted(_LOSSES)


def parse_options(loss: Loss, options: Mapping[str, Any]) -> Config:
    """Validate the options of a loss. Raises `UserError`."""
    of = f"loss {loss.name!r}"
    return registry_options.parse_options(loss.options, options, of=of, key="learner.loss_options")


MAX_LOG_RATIO = 20.0
"""Bound of log ratios: ratios above e^20 need not be exact, and float32 overflows at e^88."""


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Return log(new / old) of each token, clamped to +-`MAX_LOG_RATIO`, [num_trained]."""
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def ratio_metrics(log_ratio: Tensor) -> dict[str, Tensor]:
    """Return the metrics `ratio` and `approx_kl`, which measure how far the policy moved, [num_trained] each.

    `approx_kl` is r - 1 - log r: the k3 estimate of KL(old || new) from samples of old (joschu.net/blog/kl-approx).
    """
    found = log_ratio.detach()
    ratio = found.exp()
    return {"ratio": ratio, "approx_kl": ratio - 1 - found}
