"""Corrections for the gap between the sampling policy and the trained policy: weights on token losses.

The policies differ because of the engine (kernels and precision) and, for stale trajectories, because of the model
weights. The ratio of a token is the probability under the old policy of the loss divided by that under the sampling
policy; it has no gradient. Weights of several corrections are multiplied. A token with weight 0 still counts in the
averages of the loss, so these do not depend on the ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from agentloop.registry import options as registry_options
from agentloop.registry.options import Config
from agentloop.registry.registry import Registry, registering
from agentloop.trainer.batch.trained_tokens import TrainedTokens

if TYPE_CHECKING:
    from torch import Tensor

CorrectionFn = Callable[["Tensor", TrainedTokens, Any], "Tensor"]
"""(log_ratio, tokens, options) -> weight of each token, [num_trained]; log_ratio is log(old / sampling policy)."""


@dataclass(slots=True, frozen=True)
class Correction:
    """A registered correction."""

    name: str
    function: CorrectionFn
    options: type[Config]
    tokenwise: Callable[[Any], bool]
    """Returns whether, with the given options, the weight of a token depends only on that token."""


_CORRECTIONS: Registry[Correction] = Registry("correction", "learner.corrections", own="registration")


class Level(StrEnum):
    """Unit over which ratios are aggregated."""

    TOKEN = "token"
    SEQUENCE = "sequence"
    """Product over the sampled tokens of the trajectory: unbiased, with high variance."""
    GEOMETRIC = "geometric"
    """Geometric mean over the sampled tokens of the trajectory: independent of its length."""


class LevelOptions(Config):
    """Options of corrections that work at any level."""

    level: Level = Level.TOKEN


def _at_token_level(options: LevelOptions) -> bool:
    return options.level is Level.TOKEN


def register(
    name: str, options: type[Config], *, tokenwise: Callable[[Any], bool] = lambda options: False
) -> Callable[[CorrectionFn], CorrectionFn]:
    """Return a decorator that registers a correction under a new name, with the type of its options."""
    return registering(_CORRECTIONS, name, lambda function: Correction(name, function, options, tokenwise))


def get(name: str) -> Correction:
    """Return the registered correction. Raises `UserError` with the nearest name for unknown names."""
    return _CORRECTIONS.get(name)


def names() -> list[str]:
    """Return the names of all registered corrections."""
    return sorted(_CORRECTIONS)


def parse_options(correction: Correction, options: Mapping[str, Any]) -> Config:
    """Validate the options of a correction. Raises `UserError`."""
    of = f"correction {correction.name!r}"
    return registry_options.parse_options(correction.options, options, of=of, key="learner.corrections.options")


_MAX_LOG = 20.0
"""Bound of log ratios, so that products over thousands of tokens do not overflow; caps are far below e^20."""


def ratio_at(level: Level, log_ratio: Tensor, tokens: TrainedTokens) -> Tensor:
    """Return the ratio of each token or of its trajectory, [num_trained]."""
    match level:
        case Level.TOKEN:
            found = log_ratio
        case Level.SEQUENCE:
            found = tokens.spread(tokens.sums(log_ratio))
        case Level.GEOMETRIC:
            found = tokens.spread(tokens.means(log_ratio))
    return found.clamp(-_MAX_LOG, _MAX_LOG).exp()


class TruncateOptions(LevelOptions):
    """Options of `truncate`."""

    cap: float = Field(default=2.0, gt=0)


@register("truncate", TruncateOptions, tokenwise=_at_token_level)
def truncate(log_ratio: Tensor, tokens: TrainedTokens, options: TruncateOptions) -> Tensor:
    """Return min(ratio, cap): truncated importance sampling (Ionides, 2008; fengyao.notion.site/off-policy-rl)."""
    return ratio_at(options.level, log_ratio, tokens).clamp(max=options.cap)


class BoundsOptions(Config):
    """Options of corrections that keep ratios within [low, high]."""

    low: float = Field(ge=0)
    high: float = Field(gt=0)

    @model_validator(mode="after")
    def _are_in_order(self) -> Self:
        if not self.low <= self.high:
            # A plain ValueError would show as "Value error, ...".
            raise PydanticCustomError(
                "bounds",
                "low is {low} and high is {high}, so nothing would be trained. Set low to high or less",
                {"low": f"{self.low:g}", "high": f"{self.high:g}"},
            )
        return self


class MaskOptions(BoundsOptions, LevelOptions):
    """Options of `mask`."""

    low: float = Field(default=0.0, ge=0)
    high: float = Field(default=2.0, gt=0)


@register("mask", MaskOptions, tokenwise=_at_token_level)
def mask(log_ratio: Tensor, tokens: TrainedTokens, options: MaskOptions) -> Tensor:
    """Return the ratio, or 0 if it is outside [low, high]: masked importance sampling."""
    ratio = ratio_at(options.level, log_ratio, tokens)
    return ratio * _within(ratio, options.low, options.high)


class IcePopOptions(BoundsOptions):
    """Options of `icepop`."""

    low: float = Field(default=0.5, ge=0)
    high: float = Field(default=5.0, gt=0)


@register("icepop", IcePopOptions, tokenwise=lambda options: True)
def icepop(log_ratio: Tensor, tokens: TrainedTokens, options: IcePopOptions) -> Tensor:
    """Return the ratio of each token, or 0 if it is outside [low, high] (Ring-1T, arXiv 2510.18855)."""
    ratio = ratio_at(Level.TOKEN, log_ratio, tokens)
    return ratio * _within(ratio, options.low, options.high)


class RejectOptions(BoundsOptions, LevelOptions):
    """Options of `reject`."""

    level: Level = Level.GEOMETRIC
    low: float = Field(default=0.99, ge=0)
    high: float = Field(default=1.01, gt=0)


@register("reject", RejectOptions, tokenwise=_at_token_level)
def reject(log_ratio: Tensor, tokens: TrainedTokens, options: RejectOptions) -> Tensor:
    """Return 1 if the ratio is within [low, high], else 0 (geometric sequence masking, richardli.xyz/rl-collapse).

    It drops trajectories or tokens that the old policy would rarely sample. Combine it with weights, such as `truncate`
    at token level.
    """
    return _within(ratio_at(options.level, log_ratio, tokens), options.low, options.high)


class VetoOptions(Config):
    """Options of `veto`."""

    threshold: float = Field(default=1e-4, gt=0, lt=1)


@register("veto", VetoOptions)
def veto(log_ratio: Tensor, tokens: TrainedTokens, options: VetoOptions) -> Tensor:
    """Return 0 for all tokens of a trajectory if the ratio of any of them is below the threshold, else 1."""
    is_bad = (log_ratio.exp() < options.threshold).to(log_ratio.dtype)
    return (tokens.spread(tokens.sums(is_bad)) == 0).to(log_ratio.dtype)


def _within(ratio: Tensor, low: float, high: float) -> Tensor:
    return ((ratio >= low) & (ratio <= high)).to(ratio.dtype)


def interpolated_logprobs(logprobs: Tensor, tokens: TrainedTokens) -> Tensor:
    """Estimate the logprobs under the weights before the batch without a forward pass (A-3PO, arXiv 2512.06547).

    They are log-linear between the sampling policy, `ages` versions ago, and the current policy: (1 - a) log sampled +
    a log current, with a = age / (age + 1). So a token of age 0 keeps its sampled logprob. The result is detached,
    [num_trained].
    """
    ages = tokens.ages.to(logprobs.dtype)
    return tokens.rollout_logprobs + ages / (ages + 1) * (logprobs.detach() - tokens.rollout_logprobs)
