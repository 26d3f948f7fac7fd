"""Create the learner of a config."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from agentloop.config.learner import LearnerConfig
from agentloop.config.resolved import ResolvedConfig
from agentloop.errors import UserError
from agentloop.trainer import advantages
from agentloop.trainer.cluster.learner_ranks import LearnerRanks
from agentloop.trainer.cluster.reservation import GpuReservation
from agentloop.trainer.learner.auxiliary_model import ActorCritic, WithProcessReward
from agentloop.trainer.learner.protocol import Learner, RankLearner
from agentloop.trainer.learner.ranked_learner import OwningLearner, RankedLearner

Backend = Callable[[LearnerConfig], RankLearner]


def create(
    config: LearnerConfig,
    ranks: LearnerRanks | None = None,
    *,
    reservation: GpuReservation | None = None,
    folder: Path | None = None,
) -> Learner:
    """Return the learner of `config.backend`.

    With the `ranks` of another learner it shares them. Otherwise it starts ranks on the GPUs of `reservation`; all of
    them write to the run's `folder`. Raises `UserError` if the configuration or the model is unusable.
    """
    return _on_ranks(_backend(config), config, ranks, reservation, folder)


def _backend(config: LearnerConfig) -> Backend:
    if config.backend == "megatron":
        if importlib.util.find_spec("megatron") is None:
            raise UserError("learner.backend=megatron needs megatron-core: pip install 'agentloop[megatron]'.")
        from agentloop.trainer.learner.megatron.learner import MegatronLearner

        return MegatronLearner
    from agentloop.trainer.learner.fsdp.learner import FsdpLearner

    return FsdpLearner


def create_critic(config: LearnerConfig, ranks: LearnerRanks | None = None) -> Learner:
    """Return a learner whose log-probabilities are values; its loss is `value`. Raises `UserError` as `create` does."""
    if config.backend == "megatron":
        raise UserError("learner.backend=megatron has no critic, which advantage gae needs. Set learner.backend=fsdp.")
    from agentloop.trainer.learner.fsdp.critic import FsdpCritic

    return _on_ranks(FsdpCritic, config, ranks)


def _on_ranks(
    backend: Backend,
    config: LearnerConfig,
    ranks: LearnerRanks | None,
    reservation: GpuReservation | None = None,
    folder: Path | None = None,
) -> Learner:
    if ranks is not None:
        return RankedLearner(backend, config, ranks)
    alone = config.ranks == 1 and config.nodes in (None, 1) and config.in_process
    return backend(config) if alone else OwningLearner(backend, config, reservation, folder)


def make_learner(config: ResolvedConfig, folder: Path, reservation: GpuReservation | None = None) -> Learner:
    """Create the learner of a run and, on the same ranks, the auxiliary model that its advantage trains.

    Every rank writes to the run's `folder`. Raises `UserError` if the configuration or a model is unusable.
    """
    policy = create(config.learner, reservation=reservation, folder=folder)
    try:
        return _with_auxiliary_model(config, policy)
    except BaseException:
        policy.close()
        raise


def _with_auxiliary_model(config: ResolvedConfig, policy: Learner) -> Learner:
    advantage = advantages.get(config.algorithm.advantage)
    ranks = policy.ranks if isinstance(policy, RankedLearner) else None
    if advantage.value_targets is not None:
        critic = create_critic(config.critic_learner, ranks)
        return ActorCritic(policy, critic, warmup_steps=config.critic.warmup_steps)
    if advantage.needs_process_rewards:
        judge = create(config.process_reward_learner, ranks)
        return WithProcessReward(policy, judge, beta=config.process_reward.beta)
    return policy
