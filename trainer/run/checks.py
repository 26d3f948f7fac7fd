"""Settings that cannot be trained with, found before anything loads."""

from __future__ import annotations

from collections.abc import Iterator

from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer import advantages
from agentloop.trainer.objective.objective import Objective
from agentloop.trainer.sizing.batch_sizes import BatchSizes, training_ranks
from agentloop.trainer.staleness.policy import StalenessPolicy

_OF_COMPANIONS = {"value": "gae", "implicit_reward": "prime"}
"""Losses that no policy is trained with, and the advantages that learn from them."""


def check_trainable(config: RunConfig) -> None:
    """Raises `UserError` that names every setting at fault and says what to set it to."""
    advantage = advantages.get(config.algorithm.advantage)
    advantages.parse_options(advantage, config.algorithm.advantage_options)
    Objective(config.learner)
    StalenessPolicy.of(config.staleness, config.algorithm.groups_per_step)
    if problems := [
        *_data_problems(config),
        *_learner_problems(config),
        *_staleness_problems(config),
        *_sleep_problems(config),
        *BatchSizes.of(config).problems(),
    ]:
        raise UserError(f"This run cannot work. {' '.join(problems)}")


def _data_problems(config: RunConfig) -> Iterator[str]:
    if config.algorithm.group_size < 2 and advantages.get(config.algorithm.advantage).compares:
        yield (
            f"algorithm.group_size is {config.algorithm.group_size}: {config.algorithm.advantage} compares the "
            "episodes of one task, so that one alone says nothing. Set it to 2 or more; 8 is usual."
        )
    if config.algorithm.group_size < 2 and config.algorithm.dynamic_sampling is not None:
        yield (
            "algorithm.dynamic_sampling keeps the groups with unequal rewards, and algorithm.group_size is 1. Leave "
            "dynamic_sampling out, or set group_size to 2 or more."
        )
    if config.sampling.temperature == 0:
        yield "sampling.temperature is 0: all episodes of a task would be the same. Set it above 0; 1 is usual."
    if config.eval.every and config.data.eval is None:
        yield "eval.every is set, but there are no held-out tasks. Set data.eval, or eval.every=0."


def _learner_problems(config: RunConfig) -> Iterator[str]:
    learner = config.learner
    ranks = training_ranks(config)
    if ranks % learner.sequence_parallel:
        yield (
            f"learner.sequence_parallel is {learner.sequence_parallel} and {ranks} ranks train: groups of equal size "
            f"share rows. Set learner.ranks to a multiple of {learner.sequence_parallel}."
        )
    if ranks % (learner.nodes or 1):
        yield (
            f"learner.nodes is {learner.nodes} and {ranks} ranks train: each node has as many as the others. Set "
            f"learner.ranks to a multiple of {learner.nodes}, or leave learner.nodes out."
        )
    if config.sampling.temperature not in (0, learner.temperature):
        yield (
            f"learner.temperature is {learner.temperature} and sampling.temperature {config.sampling.temperature}: the "
            "learner must score tokens as they were sampled. Leave learner.temperature out."
        )
    if learner.backend == "megatron" and advantages.get(config.algorithm.advantage).value_targets is not None:
        yield (
            f"learner.backend is megatron, which has no critic, and algorithm.advantage={config.algorithm.advantage} "
            "needs one. Set learner.backend=fsdp, or another advantage."
        )
    if learner.loss in _OF_COMPANIONS:
        yield (
            f"learner.loss is {learner.loss}, which is the loss of a model beside the policy. To have one, set "
            f"algorithm.advantage={_OF_COMPANIONS[learner.loss]} and leave learner.loss out."
        )
    if config.algorithm.kl_in_reward and not learner.needs_reference:
        yield (
            f"algorithm.kl_in_reward is {config.algorithm.kl_in_reward}, but no reference model is loaded. Set "
            "learner.reference to its folder, or to the value of model."
        )
    if learner.model != config.model:
        yield f"learner.model is {learner.model!r} and model {config.model!r}. Leave learner.model out."
    if "steps" in config.run.model_fields_set and config.run.epochs is not None:
        yield f"run.steps is {config.run.steps} and run.epochs {config.run.epochs:g}: say one of them."
    is_long = config.run.epochs is None and learner.lr_schedule != "constant"
    if is_long and learner.warmup_updates >= (learner.total_updates or 0):
        yield (
            f"learner.warmup_updates is {learner.warmup_updates} of {learner.total_updates} updates in all. Lower it, "
            "or raise run.steps."
        )


def _sleep_problems(config: RunConfig) -> Iterator[str]:
    if not config.placement.sleeps:
        return
    if config.staleness.mode == "partial":
        yield (
            "placement.sleep is true and staleness.mode partial: engines that sample while the learner trains cannot "
            "sleep. Set placement.sleep=false, or another mode (docs/async.md)."
        )
    if config.placement.layout == "separate":
        yield (
            "placement.sleep is true and placement.layout separate: engines on GPUs of their own have nobody to leave "
            "them to. Set placement.sleep=false, or layout=colocated or mixed."
        )


def _staleness_problems(config: RunConfig) -> Iterator[str]:
    staleness, group_size = config.staleness, config.algorithm.group_size
    if staleness.mode in ("stale", "partial") and not config.learner.corrections and not staleness.allow_uncorrected:
        yield (
            f"staleness.mode is {staleness.mode}, so that tokens are of older weights than those that are trained, and "
            "learner.corrections is empty. Set learner.corrections=[truncate] (truncated importance sampling, token by "
            "token), or staleness.allow_uncorrected=true to leave the difference to the clipping of the loss."
        )
    if (staleness.cut.min_episodes or 0) > group_size:
        yield (
            f"staleness.cut.min_episodes is {staleness.cut.min_episodes} and algorithm.group_size {group_size}: no "
            f"group is so large. Set it to {group_size} or less."
        )
