"""Check the settings of a run on given answers before anything loads."""

from __future__ import annotations

from collections.abc import Iterator

from agentloop.config.fine_tuning import FineTuningConfig
from agentloop.errors import UserError
from agentloop.trainer.objective.objective import Objective
from agentloop.trainer.run.checks import rank_problems, warmup_problems
from agentloop.trainer.sizing.layouts import Layout


def check_fine_tunable(config: FineTuningConfig) -> None:
    """Raise one `UserError` that names every wrong setting and a valid value."""
    Objective(config.learner)
    if problems := list(_problems(config)):
        raise UserError(f"This run cannot work. {' '.join(problems)}")


def _problems(config: FineTuningConfig) -> Iterator[str]:
    learner = config.learner
    if learner.loss == "dpo" and learner.aggregation is not None:
        yield "learner.aggregation does not apply to dpo, whose loss is the mean over pairs. Remove it."
    if config.eval.every and config.data.eval is None and config.eval.rollout is None:
        yield (
            f"eval.every is {config.eval.every}, but there is nothing to evaluate on. Set data.eval (held-out "
            "conversations) or eval.rollout (a run config), or eval.every=0."
        )
    if config.data.max_tokens is not None and config.data.max_tokens > learner.token_budget:
        yield (
            f"data.max_tokens is {config.data.max_tokens} but learner.token_budget is {learner.token_budget}: longer "
            f"conversations do not fit a micro-batch. Set learner.token_budget={config.data.max_tokens} or more."
        )
    ranks = max(Layout.of(learner, learner.ranks).data, 1)
    if config.batch_size < learner.mini_batches * ranks:
        yield (
            f"batch_size is {config.batch_size}, but {learner.mini_batches} updates on {ranks} ranks need "
            f"{learner.mini_batches * ranks} or more."
        )
    yield from rank_problems(learner)
    yield from warmup_problems(config)
