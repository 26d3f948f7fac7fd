"""Stop the run if its engine computes another model than its learner: it would train on wrong numbers."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from agentloop.config.run import RunConfig
from agentloop.errors import UserError

_LARGE = 0.1
"""Difference in nats that is logged. Roundings of bfloat16 make 0.04 with pretrained weights (docs/benchmarks.md)."""
_CAUSES = (
    "Likely causes: the engine computes this model family differently (docs/reference/models.md has a table), it did "
    "not load all weights, or its model is quantised"
)

logger = logging.getLogger(__name__)


def check_engine(learned: Mapping[str, float], config: RunConfig, *, step: int) -> None:
    """Compare log-probabilities of engine and learner in a step whose tokens were sampled with the learner's weights.

    This is the first step of a run, or of a resumed one, that trains the policy. `learned` are the metrics of
    `Learner.step`. Nothing is compared if the loss does not read the log-probabilities of the engine, if sampling
    excludes tokens, which the learner includes, or if the turns are scripted.

    Raises `UserError` if the mean difference is above `run.max_logprob_diff`.
    """
    difference, bound = learned.get("logprob_diff"), config.run.max_logprob_diff
    is_cut = config.sampling.top_p < 1 or config.sampling.top_k > 0
    if difference is None or bound is None or is_cut or config.engine.name == "scripted":
        return
    found = (
        f"Log-probabilities of the engine {config.engine.name!r} and of the learner differ by {difference:.3g} nats on "
        f"average in step {step}, although both have the same weights"
    )
    if not difference <= bound:  # NaN is not
        raise UserError(
            f"{found}; run.max_logprob_diff is {bound:g}. {_CAUSES}. Set engine.name=hf to compare, or "
            "run.max_logprob_diff to a larger bound if you expect the difference."
        )
    if difference > _LARGE:
        logger.warning("%s. %s.", found, _CAUSES)
