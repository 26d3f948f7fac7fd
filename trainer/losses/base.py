"""What a loss is, and the registry of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentloop.config.learner import Aggregation
from agentloop.registry import registry
from agentloop.registry.options import Config
from agentloop.registry.registry import NoOptions, Registry
from agentloop.trainer.batch.trained_tokens import TrainedTokens

if TYPE_CHECKING:
    from torch import Tensor

LossFn = Callable[["Tensor", "Tensor", TrainedTokens, Any], "tuple[Tensor, dict[str, Tensor]]"]
"""(logprobs, old_logprobs, tokens, options) to the loss of each token and, detached, what else is worth a mean over
tokens; tensors [num_trained]. `old_logprobs` are those that ratios are taken against."""


@dataclass(slots=True, frozen=True)
class Loss:
    """A registered loss."""

    name: str
    function: LossFn
    options: type[Config]
    on_policy: bool
    """Compares with the policy that sampled: needs rollout logprobs, and no advantage means no gradient."""
    tokenwise: bool
    """The loss of a token depends on no other token, so that it may be computed in any pieces."""
    needs_reference: bool
    """`TrainedTokens.reference_logprobs` must be there."""
    aggregation: Aggregation
    """The one of its paper."""


_LOSSES: Registry[Loss] = Registry("loss", "loss")


def register(
    name: str,
    options: type[Config] = NoOptions,
    *,
    on_policy: bool = True,
    tokenwise: bool = True,
    needs_reference: bool = False,
    aggregation: Aggregation = Aggregation.TOKEN_MEAN,
) -> Callable[[LossFn], LossFn]:
    """Decorator: make a loss known under a name, with the type of its options. A name can be taken once."""

    def add(function: LossFn) -> LossFn:
        _LOSSES.add(name, Loss(name, function, options, on_policy, tokenwise, needs_reference, aggregation))
        return function

    return add


def get(name: str) -> Loss:
    """The registered loss. Raises `UserError` with the nearest name."""
    return _LOSSES.get(name)


def names() -> list[str]:
    return list(_LOSSES)


def parse_options(loss: Loss, options: Mapping[str, Any]) -> Config:
    """The options of a loss, checked. Raises `UserError`."""
    return registry.parse_options(loss.options, options, of=f"loss {loss.name!r}", key="loss_options")


MAX_LOG_RATIO = 20.0
"""Of a token: beyond e^20 the exact value says nothing, and float32 ends at e^88."""


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """log (new / old) of each token, within +-`MAX_LOG_RATIO`, [num_trained]."""
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def ratio_metrics(log_ratio: Tensor) -> dict[str, Tensor]:
    """How far the policy moved: `ratio`, and `approx_kl`, the k3 estimate of KL(old || new) from samples of old:
    r - 1 - log r (joschu.net/blog/kl-approx)."""
    found = log_ratio.detach()
    ratio = found.exp()
    return {"ratio": ratio, "approx_kl": ratio - 1 - found}
