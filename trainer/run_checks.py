"""Settings that cannot be trained with, found before anything loads."""

from __future__ import annotations

from collections.abc import Iterator

from agentloop.errors import UserError
from agentloop.trainer import advantages, losses
from agentloop.trainer.run_config import RunConfig


def check_trainable(config: RunConfig) -> None:
    """Raises `UserError` that names every setting at fault and says what to set it to."""
    advantages.get(config.algorithm.advantage)
    losses.parse_options(losses.get(config.learner.loss), config.learner.loss_options)
    if problems := [*_data_problems(config), *_learner_problems(config)]:
        raise UserError(f"This run cannot work. {' '.join(problems)}")


def _data_problems(config: RunConfig) -> Iterator[str]:
    if config.algorithm.group_size < 2:
        yield (
            f"algorithm.group_size is {config.algorithm.group_size}: {config.algorithm.advantage} compares the "
            "episodes of one task, so that one alone says nothing. Set it to 2 or more; 8 is usual."
        )
    if config.sampling.temperature == 0:
        yield "sampling.temperature is 0: all episodes of a task would be the same. Set it above 0; 1 is usual."
    if config.eval.every and config.data.eval is None:
        yield "eval.every is set, but there are no held-out tasks. Set data.eval, or eval.every=0."


def _learner_problems(config: RunConfig) -> Iterator[str]:
    learner = config.learner
    if config.sampling.temperature not in (0, learner.temperature):
        yield (
            f"learner.temperature is {learner.temperature} and sampling.temperature {config.sampling.temperature}: the "
            "learner must score tokens as they were sampled. Leave learner.temperature out."
        )
    if learner.model != config.model:
        yield f"learner.model is {learner.model!r} and model {config.model!r}. Leave learner.model out."
    if learner.token_budget < config.limits.max_tokens:
        yield (
            f"learner.token_budget is {learner.token_budget} and limits.max_tokens {config.limits.max_tokens}: a "
            "trajectory could be too long to train on. Raise the one or lower the other."
        )
    if learner.lr_schedule != "constant" and learner.warmup_updates >= (learner.total_updates or 0):
        yield (
            f"learner.warmup_updates is {learner.warmup_updates} of {learner.total_updates} updates in all. Lower it, "
            "or raise run.steps."
        )
    if learner.mini_batches > config.trajectories_per_step:
        yield (
            f"learner.mini_batches is {learner.mini_batches}, but a step has {config.trajectories_per_step} "
            "trajectories (algorithm.groups_per_step * algorithm.group_size). Lower it."
        )
