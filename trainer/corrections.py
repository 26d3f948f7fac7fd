"""Corrections for tokens that another policy sampled than the one that is trained: weights of their losses.

What differs is the engine (kernels and precision) and, for stale trajectories, the weights. The ratio is that of the
old policy of the loss over the policy that sampled, token by token; it carries no gradient. Weights of several
corrections are multiplied. A token of weight 0 still counts in the averages of the loss, so that those do not depend on
the ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import Field

from agentloop.registry import registry
from agentloop.registry.options import Config
from agentloop.registry.registry import Registry
from agentloop.trainer.batch.trained_tokens import TrainedTokens

if TYPE_CHECKING:
    from torch import Tensor

CorrectionFn = Callable[["Tensor", TrainedTokens, Any], "Tensor"]
"""(log_ratio, tokens, options) to the weight of each token, [num_trained]; `log_ratio` is old over sampling policy."""


@dataclass(slots=True, frozen=True)
class Correction:
    """A registered correction."""

    name: str
    function: CorrectionFn
    options: type[Config]
    tokenwise: Callable[[Any], bool]
    """Of its options: the weight of a token depends on no other token."""


_CORRECTIONS: Registry[Correction] = Registry("correction", "corrections")


class Level(StrEnum):
    """Whose ratio it is."""

    TOKEN = "token"
    SEQUENCE = "sequence"
    """The product over the sampled tokens of the trajectory: unbiased, of high variance."""
    GEOMETRIC = "geometric"
    """Its geometric mean, which does not grow with the length."""


class LevelOptions(Config):
    level: Level = Level.TOKEN


def _at_token_level(options: LevelOptions) -> bool:
    return options.level is Level.TOKEN


def register(
    name: str, options: type[Config], *, tokenwise: Callable[[Any], bool] = lambda options: False
) -> Callable[[CorrectionFn], CorrectionFn]:
    """Decorator: make a correction known under a name, with the type of its options. A name can be taken once."""

    def add(function: CorrectionFn) -> CorrectionFn:
        _CORRECTIONS.add(name, Correction(name, function, options, tokenwise))
        return function

    return add


def get(name: str) -> Correction:
    """The registered correction. Raises `UserError` with the nearest name."""
    return _CORRECTIONS.get(name)


def names() -> list[str]:
    return list(_CORRECTIONS)


def parse_options(correction: Correction, options: Mapping[str, Any]) -> Config:
    """The options of a correction, checked. Raises `UserError`."""
    return registry.parse_options(
        correction.options, options, of=f"correction {correction.name!r}", key="corrections.options"
    )


_MAX_LOG = 20.0
"""A product over thousands of tokens must not overflow; every bound is far below e^20."""


def ratio_at(level: Level, log_ratio: Tensor, tokens: TrainedTokens) -> Tensor:
    """The ratio of each token, or of its trajectory, at each token, [num_trained]."""
    match level:
        case Level.TOKEN:
            found = log_ratio
        case Level.SEQUENCE:
            found = tokens.spread(tokens.sums(log_ratio))
        case Level.GEOMETRIC:
            found = tokens.spread(tokens.means(log_ratio))
    return found.clamp(-_MAX_LOG, _MAX_LOG).exp()


class TruncateOptions(LevelOptions):
    cap: float = Field(default=2.0, gt=0)


@register("truncate", TruncateOptions, tokenwise=_at_token_level)
def truncate(log_ratio: Tensor, tokens: TrainedTokens, options: TruncateOptions) -> Tensor:
    """min(ratio, cap): truncated importance sampling (Ionides, 2008; fengyao.notion.site/off-policy-rl)."""
    return ratio_at(options.level, log_ratio, tokens).clamp(max=options.cap)


class BoundsOptions(LevelOptions):
    low: float = Field(default=0.0, ge=0)
    high: float = Field(default=2.0, gt=0)


@register("mask", BoundsOptions, tokenwise=_at_token_level)
def mask(log_ratio: Tensor, tokens: TrainedTokens, options: BoundsOptions) -> Tensor:
    """The ratio within [low, high], 0 outside: masked importance sampling; what is far off is noise, not signal."""
    ratio = ratio_at(options.level, log_ratio, tokens)
    return ratio * _within(ratio, options.low, options.high)


class IcePopOptions(Config):
    low: float = Field(default=0.5, ge=0)
    high: float = Field(default=5.0, gt=0)


@register("icepop", IcePopOptions, tokenwise=lambda options: True)
def icepop(log_ratio: Tensor, tokens: TrainedTokens, options: IcePopOptions) -> Tensor:
    """`mask` of tokens with bounds on both sides (Ring-1T, arXiv 2510.18855)."""
    ratio = ratio_at(Level.TOKEN, log_ratio, tokens)
    return ratio * _within(ratio, options.low, options.high)


class RejectOptions(BoundsOptions):
    level: Level = Level.GEOMETRIC
    low: float = Field(default=0.99, ge=0)
    high: float = Field(default=1.01, gt=0)


@register("reject", RejectOptions, tokenwise=_at_token_level)
def reject(log_ratio: Tensor, tokens: TrainedTokens, options: RejectOptions) -> Tensor:
    """1 within [low, high], 0 outside: drops trajectories (or tokens) that another policy would hardly have sampled.

    Combines with a weight, e.g. `truncate` of tokens. Geometric sequence masking: richardli.xyz/rl-collapse.
    """
    return _within(ratio_at(options.level, log_ratio, tokens), options.low, options.high)


class VetoOptions(Config):
    threshold: float = Field(default=1e-4, gt=0, lt=1)


@register("veto", VetoOptions)
def veto(log_ratio: Tensor, tokens: TrainedTokens, options: VetoOptions) -> Tensor:
    """0 for all tokens of a trajectory in which the ratio of any is below the threshold, else 1."""
    is_bad = (log_ratio.exp() < options.threshold).to(log_ratio.dtype)
    return (tokens.spread(tokens.sums(is_bad)) == 0).to(log_ratio.dtype)


def _within(ratio: Tensor, low: float, high: float) -> Tensor:
    return ((ratio >= low) & (ratio <= high)).to(ratio.dtype)


def interpolated_logprobs(logprobs: Tensor, tokens: TrainedTokens) -> Tensor:
    """Log-probabilities of the weights before the batch without a pass for them, detached, [num_trained].

    Log-linear in the version between the policy that sampled, `ages` versions ago, and the one that is being made:
    (1 - a) log sampled + a log current with a = age / (age + 1). So fresh tokens keep those they were sampled with.
    A-3PO, arXiv 2512.06547.
    """
    ages = tokens.ages.to(logprobs.dtype)
    return tokens.rollout_logprobs + ages / (ages + 1) * (logprobs.detach() - tokens.rollout_logprobs)
