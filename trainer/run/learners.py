"""Make the learner that a config asks for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from agentloop.config.learner import LearnerConfig
from agentloop.config.resolved import ResolvedConfig
from agentloop.errors import UserError
from agentloop.trainer import advantages
from agentloop.trainer.cluster.learner_host import Home
from agentloop.trainer.learner.auxiliary_model import ActorCritic, WithProcessReward
from agentloop.trainer.learner.protocol import Learner, RankLearner


def create(config: LearnerConfig, home: Home | None = None) -> Learner:
    """The learner of `config.backend`, for the run that `home` is of. Raises `UserError` where the configuration or the
    model cannot be used."""
    if config.backend == "megatron":
        return _on_ranks(_megatron(), config, home)
    from agentloop.trainer.learner.fsdp.learner import FsdpLearner

    return _on_ranks(FsdpLearner, config, home)


def _megatron() -> Callable[[LearnerConfig], RankLearner]:
    if importlib.util.find_spec("megatron") is None:
        raise UserError("learner.backend=megatron needs megatron-core: pip install 'agentloop[megatron]'.")
    from agentloop.trainer.learner.megatron.learner import MegatronLearner

    return MegatronLearner


def create_critic(config: LearnerConfig, home: Home | None = None) -> Learner:
    """A learner whose log-probabilities are values; its loss is `value`. Raises `UserError` as `create` does."""
    if config.backend == "megatron":
        raise UserError("learner.backend=megatron has no critic, which advantage gae needs. Set learner.backend=fsdp.")
    from agentloop.trainer.learner.fsdp.critic import FsdpCritic

    return _on_ranks(FsdpCritic, config, home)


def _on_ranks(
    backend: Callable[[LearnerConfig], RankLearner], config: LearnerConfig, home: Home | None = None
) -> Learner:
    from agentloop.trainer.learner.ranked_learner import RankedLearner

    alone = config.ranks == 1 and config.nodes in (None, 1)
    return backend(config) if alone else RankedLearner(backend, config, home)


def make_learner(config: ResolvedConfig, home: Home) -> Learner:
    """Make the learner of a run, with the second model that its advantage trains. Raises `UserError`."""
    policy = create(config.learner, home)
    try:
        return _with_auxiliary_model(config, policy, home)
    except BaseException:
        policy.close()
        raise


def _with_auxiliary_model(config: ResolvedConfig, policy: Learner, home: Home) -> Learner:
    advantage = advantages.get(config.algorithm.advantage)
    if advantage.value_targets is not None:
        critic = create_critic(config.critic_learner, home)
        return ActorCritic(policy, critic, warmup_steps=config.critic.warmup_steps)
    if advantage.needs_process_rewards:
        judge = create(config.process_reward_learner, home)
        return WithProcessReward(policy, judge, beta=config.process_reward.beta)
    return policy
