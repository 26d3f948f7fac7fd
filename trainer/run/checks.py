"""Check the settings of a run before anything loads."""

from __future__ import annotations

from collections.abc import Iterator

from agentloop.config.learner import LearnerConfig
from agentloop.config.run import RunConfig, TrainingConfig, schedule_updates
from agentloop.engines import ENGINES
from agentloop.errors import UserError
from agentloop.trainer import advantages, losses
from agentloop.trainer.batch.outcomes import judges_alone
from agentloop.trainer.objective.objective import Objective
from agentloop.trainer.sizing.batch_sizes import BatchSizes
from agentloop.trainer.staleness.policy import StalenessPolicy


def check_trainable(config: RunConfig) -> None:
    """Raise one `UserError` that names every wrong setting and a valid value."""
    if ENGINES.get(config.engine.name).read_turn is not None:
        raise UserError(
            f"engine.name={config.engine.name} can only evaluate (agentloop rollout): the service returns neither the "
            "token ids nor the log-probabilities that the learner needs. Set engine.name to vllm, sglang or hf."
        )
    advantage = advantages.get(config.algorithm.advantage)
    advantages.parse_options(advantage, config.algorithm.advantage_options)
    Objective(config.learner)
    StalenessPolicy.of(config.staleness, config.algorithm.groups_per_step)
    if problems := [
        *_data_problems(config),
        *_sampling_problems(config),
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
            "episodes of one task, so it needs several. Set it to 2 or more; 8 is usual."
        )
    if config.algorithm.group_size < 2 and config.algorithm.dynamic_sampling is not None:
        yield (
            "algorithm.dynamic_sampling keeps groups whose rewards differ, but algorithm.group_size is 1. Remove "
            "dynamic_sampling, or set group_size to 2 or more."
        )
    elif config.algorithm.dynamic_sampling is not None and not judges_alone(config.algorithm):
        yield (
            f"algorithm.dynamic_sampling drops groups without a gradient, but with algorithm.advantage="
            f"{config.algorithm.advantage}{' and kl_in_reward' * (config.algorithm.kl_in_reward > 0)}"
            f"{' and distillation' * (config.algorithm.distillation is not None)} the rewards of a "
            "group do not determine that: groups with equal rewards may have a gradient. Remove dynamic_sampling, or "
            "set another advantage, such as grpo, without kl_in_reward."
        )
    penalised_greedy = advantages.get(config.algorithm.advantage).needs_greedy and config.algorithm.kl_in_reward > 0
    if penalised_greedy and config.sampling.temperature != 1:
        yield (
            f"sampling.temperature is {config.sampling.temperature}: the greedy episodes of "
            f"{config.algorithm.advantage} are scored at temperature 1, so their KL to the reference "
            "(algorithm.kl_in_reward) would not be comparable with that of the others. Set sampling.temperature=1, "
            "or remove kl_in_reward."
        )
    overlong, longest = config.algorithm.overlong, config.max_tokens()
    # Only episodes of tools are surely one stream of tokens; the penalty counts all streams of an episode.
    if overlong is not None and config.env.factory == "tool" and overlong.reward(longest) == 0:
        setting = "learner.token_budget" if config.limits.max_tokens is None else "limits.max_tokens"
        yield (
            f"algorithm.overlong.max_sampled_tokens is {overlong.max_sampled_tokens} and its buffer is "
            f"{overlong.buffer}, but {setting} is {longest}: no episode would be penalised. Set max_sampled_tokens to "
            f"{longest} or less, or remove overlong."
        )
    engine = config.engine.options.get("max_model_len")
    if isinstance(engine, int) and 0 < engine < (config.limits.max_tokens or 0):
        yield (
            f"limits.max_tokens is {config.limits.max_tokens}, but engine.options.max_model_len is {engine}, where the "
            f"engine would cut episodes. Set limits.max_tokens={engine}, or remove max_model_len."
        )
    if config.eval.every and config.data.eval is None:
        yield f"eval.every is {config.eval.every}, but there are no held-out tasks. Set data.eval, or eval.every=0."


def _sampling_problems(config: RunConfig) -> Iterator[str]:
    """Reject log-probabilities of a different distribution than the learner's, unless the loss does not use them."""
    sampling, learner = config.sampling, config.learner
    if sampling.temperature == 0:
        yield "sampling.temperature is 0: all episodes of a task would be equal. Set it above 0; 1 is usual."
    is_cut = sampling.top_p < 1 or sampling.top_k > 0
    corrects = bool(learner.corrections) and learner.old_logprobs == "auto" and config.engine.reports_cut
    if is_cut and Objective(learner).loss.on_policy and learner.old_logprobs != "learner" and not corrects:
        given = f"sampling.top_p is {sampling.top_p:g}" if sampling.top_p < 1 else f"sampling.top_k is {sampling.top_k}"
        other = (
            "learner.corrections=[truncate], which weights each token by its probability among all tokens divided by "
            "that among the candidates"
            if config.engine.reports_cut
            else f"learner.old_logprobs=learner, which excludes the log-probabilities of {config.engine.name} from the "
            "loss"
        )
        yield (
            f"{given}: tokens are sampled from some candidates, but the learner normalises over all tokens, and the "
            "loss compares the two. Set sampling.top_p=1 and sampling.top_k=0 (evaluations have eval.top_p), or set "
            f"{other}."
        )


def _learner_problems(config: RunConfig) -> Iterator[str]:
    learner = config.learner
    yield from rank_problems(learner)
    if learner.backend == "megatron" and advantages.get(config.algorithm.advantage).value_targets is not None:
        yield (
            f"learner.backend is megatron, which has no critic, but algorithm.advantage={config.algorithm.advantage} "
            "needs one. Set learner.backend=fsdp, or another advantage."
        )
    if learner.router_replay and ENGINES.get(config.engine.name).returns_routing is None:
        names = sorted(name for name in ENGINES if ENGINES.get(name).returns_routing is not None)
        yield (
            f"learner.router_replay is true, but engine.name={config.engine.name} does not return the experts that it "
            f"used. Set engine.name to {' or '.join(names)}, or remove router_replay."
        )
    if learner.lora is not None and learner.lora.publish == "adapters":
        if not ENGINES.get(config.engine.name).takes_adapters:
            yield (
                f"learner.lora.publish is adapters, but engine.name={config.engine.name} needs merged weights. Set "
                "learner.lora.publish=merged, or engine.name=vllm."
            )
        if config.placement.sleeps:
            yield (
                "learner.lora.publish is adapters, but placement.sleep is true: engines that sleep lose their base "
                "weights. Set learner.lora.publish=merged, or placement.sleep=false."
            )
    if advantage := losses.get(learner.loss).auxiliary_of:
        yield (
            f"learner.loss is {learner.loss}, which trains an auxiliary model, not the policy. To train it, set "
            f"algorithm.advantage={advantage} and remove learner.loss."
        )
    if losses.get(learner.loss).pairwise:
        yield f"learner.loss is {learner.loss}, which needs pairs of given answers. Use `agentloop dpo`."
    if config.algorithm.kl_in_reward and not learner.needs_reference:
        yield (
            f"algorithm.kl_in_reward is {config.algorithm.kl_in_reward}, but no reference model is loaded. Set "
            "learner.reference to its folder, or to the value of model."
        )
    yield from _auxiliary_problems(config)
    yield from _distillation_problems(config)
    if "steps" in config.run.model_fields_set and config.run.epochs is not None:
        yield f"run.steps is {config.run.steps} and run.epochs is {config.run.epochs:g}: set one of them to null."
    yield from warmup_problems(config)


def _auxiliary_problems(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each second model that has settings, but that the advantage does not train."""
    advantage = advantages.get(config.algorithm.advantage)
    for section, settings, is_trained, user in (
        ("critic", config.critic, advantage.value_targets is not None, "gae"),
        ("process_reward", config.process_reward, advantage.needs_process_rewards, "prime"),
    ):
        given = [f"{section}.{name}" for name in settings.model_dump(exclude_defaults=True)]
        if given and not is_trained:
            yield (
                f"{' and '.join(given)} would have no effect, because algorithm.advantage="
                f"{config.algorithm.advantage} does not train that model. Remove the section {section}, or set "
                f"algorithm.advantage={user}."
            )


def _distillation_problems(config: RunConfig) -> Iterator[str]:
    distillation, learner = config.algorithm.distillation, config.learner
    if distillation is None:
        return
    if not distillation.is_served and (learner.needs_reference or config.algorithm.kl_in_reward):
        yield (
            f"algorithm.distillation.teacher is {distillation.teacher}, which the learner loads as its reference "
            "model, but the run has another one (learner.reference, learner.kl_coef or algorithm.kl_in_reward). Remove "
            "these, or serve the teacher and set its address."
        )
    if distillation.is_served and config.sampling.temperature != 1:
        yield (
            f"sampling.temperature is {config.sampling.temperature}, but the teacher at {distillation.teacher} scores "
            "at temperature 1. Set sampling.temperature=1, or algorithm.distillation.teacher to a folder."
        )
    if not losses.get(learner.loss).on_policy:
        yield f"learner.loss is {learner.loss}, which ignores advantages, and so the teacher. Set another loss."


def rank_problems(learner: LearnerConfig) -> Iterator[str]:
    """Yield a sentence for each setting that does not divide the number of ranks."""
    ranks = learner.ranks
    if ranks % learner.sequence_parallel:
        yield (
            f"learner.sequence_parallel is {learner.sequence_parallel} but {ranks} ranks train: ranks share rows in "
            f"groups of equal size. Set learner.ranks to a multiple of {learner.sequence_parallel}."
        )
    if ranks % (learner.nodes or 1):
        yield (
            f"learner.nodes is {learner.nodes} but {ranks} ranks train: every node needs the same number. Set "
            f"learner.ranks to a multiple of {learner.nodes}, or remove learner.nodes."
        )


def warmup_problems(config: TrainingConfig) -> Iterator[str]:
    """Yield a sentence if the learning rate would not reach its schedule."""
    learner, updates = config.learner, schedule_updates(config)
    if learner.lr_schedule != "constant" and updates is not None and learner.warmup_updates >= updates:
        yield (
            f"learner.warmup_updates is {learner.warmup_updates}, but the run has {updates} updates. Lower it, or "
            "raise run.steps or run.epochs."
        )


def check_warmup(config: TrainingConfig) -> None:
    """Raise `UserError` as `check_trainable` does for a warm-up that is too long, once `run.epochs` is steps."""
    if problems := list(warmup_problems(config)):
        raise UserError(f"This run cannot work. {' '.join(problems)}")


def _sleep_problems(config: RunConfig) -> Iterator[str]:
    if not config.placement.sleeps:
        return
    if config.staleness.mode == "partial":
        yield (
            "placement.sleep is true and staleness.mode is partial: engines that sample while the learner trains "
            "cannot sleep. Set placement.sleep=false, or another mode (docs/concepts/async.md)."
        )
    if config.placement.layout == "separate":
        yield (
            "placement.sleep is true and placement.layout is separate: engines that share no GPU need not "
            "sleep. Set placement.sleep=false, or placement.layout to colocated or mixed."
        )


def _staleness_problems(config: RunConfig) -> Iterator[str]:
    staleness, group_size = config.staleness, config.algorithm.group_size
    if staleness.mode in ("stale", "partial") and not config.learner.corrections and not staleness.allow_uncorrected:
        yield (
            f"staleness.mode is {staleness.mode}, so older weights sample the tokens, but learner.corrections is "
            "empty. Set learner.corrections=[truncate] (truncated importance sampling of each token), or "
            "staleness.allow_uncorrected=true to rely on the clipping of the loss."
        )
    sampling = config.algorithm.dynamic_sampling
    if staleness.mode == "on_policy" and (sampling is None or sampling.oversampling == 1):
        given = {"staleness.window": staleness.window is not None, "staleness.when_late": staleness.when_late != "wait"}
        if names := " and ".join(name for name, is_given in given.items() if is_given):
            yield (
                f"{names} would have no effect: staleness.mode is on_policy, and a step then trains on all groups that "
                "it starts. Remove the setting, or set another staleness.mode."
            )
    cut = staleness.cut
    if cut.deadline is not None and cut.min_episodes is None:
        yield (
            f"staleness.cut.deadline is {cut.deadline:g}, but without min_episodes a group still waits for all its "
            "episodes. Set staleness.cut.min_episodes to the number that is enough then, or remove deadline."
        )
    if cut.min_episodes is not None and cut.deadline is None:
        yield (
            f"staleness.cut.min_episodes is {cut.min_episodes}, but without a deadline a group waits for all its "
            "episodes. Set staleness.cut.deadline to a number of seconds, or remove min_episodes."
        )
    if (cut.min_episodes or 0) >= group_size:
        yield (
            f"staleness.cut.min_episodes is {cut.min_episodes} and algorithm.group_size is {group_size}, so after the "
            f"deadline a group still waits for all its episodes. Set it below {group_size}."
        )
    if cut.min_episodes == 1 < group_size and advantages.get(config.algorithm.advantage).compares:
        yield (
            f"staleness.cut.min_episodes is 1: {config.algorithm.advantage} compares the episodes of one task, so a "
            "group of one teaches nothing. Set it to 2 or more."
        )
