"""From a config of verl to one of agentloop: the settings that both have, and notes on those that differ.

Hydra writes what verl resolved to `outputs/DATE/TIME/.hydra/config.yaml`, and beside it what was said on the command
line. Written against verl 0.9.1; keys that older versions have elsewhere are looked for there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentloop.errors import UserError

Settings = dict[str, Any]
"""Dotted key of agentloop -> value."""

_CHARACTERS_PER_TOKEN = 4

_ADVANTAGES = {
    "gae": "gae",
    "grpo": "grpo",
    "opo": "opo",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
    "remax": "remax",
    "rloo": "rloo",
}
_LOSSES = {"vanilla": "ppo", "gspo": "gspo", "sapo": "sapo", "cispo": "cispo", "geo_mean": "gmpo"}
_KL_ESTIMATORS = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_SCHEDULES = {"constant": "constant", "cosine": "cosine", "linear": "linear"}


@dataclass(slots=True)
class Converted:
    """What became of a config."""

    config: dict[str, Any]
    """As in a YAML file of agentloop."""
    notes: list[str]
    """What a person has to look at, a sentence or two each."""


@dataclass(slots=True)
class _Verl:
    """verl's config, and what has been found in it."""

    values: DictConfig
    notes: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of `keys` that is there and not null."""
        self.asked.update(keys)
        for key in keys:
            try:
                value = OmegaConf.select(self.values, key)
            except OmegaConfBaseException as error:
                raise UserError(f"verl's {key} cannot be resolved: {' '.join(str(error).split())}.") from error
            if value is not None:
                is_node = isinstance(value, DictConfig | ListConfig)
                return OmegaConf.to_container(value, resolve=True) if is_node else value
        return default

    def named(self, names: Mapping[str, str], key: str, default: str) -> str | None:
        """What the value of `key` is called here; a note where it has no name here."""
        value = str(self.get(key, default=default))
        if value not in names:
            self.notes.append(f"{key}={value} has no counterpart; known are {', '.join(names)}.")
        return names.get(value)

    def note(self, text: str) -> None:
        self.notes.append(text)


def convert(source: Path) -> Converted:
    """Read `config.yaml` of verl, resolved or as Hydra wrote it. Raises `UserError` where it is none."""
    verl = _Verl(_read(source))
    settings: Settings = {}
    for part in _PARTS:
        settings |= part(verl)
    if relative := [key for key in _PATHS if _is_relative(settings.get(key))]:
        verl.note(f"Relative paths start at the folder of this file: check {', '.join(relative)}.")
    verl.notes += _unused(verl, source.with_name("overrides.yaml"))
    return Converted(_nested({key: value for key, value in settings.items() if value is not None}), verl.notes)


def _read(source: Path) -> DictConfig:
    try:
        read = OmegaConf.load(source)
    except FileNotFoundError as error:
        raise UserError(f"There is no file {source}.") from error
    except (OSError, UnicodeDecodeError, OmegaConfBaseException, yaml.YAMLError) as error:
        raise UserError(f"{source} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(read, DictConfig) or "actor_rollout_ref" not in read:
        raise UserError(
            f"{source} is no config of verl: it has no 'actor_rollout_ref'. Hydra writes verl's to "
            "outputs/DATE/TIME/.hydra/config.yaml in the folder where a run was started."
        )
    return read


def _data(verl: _Verl) -> Settings:
    return {
        "model": verl.get("actor_rollout_ref.model.path"),
        "data.train": _one_file(verl, "data.train_files"),
        "data.train_limit": _positive(verl.get("data.train_max_samples")),
        "data.shuffle": verl.get("data.shuffle"),
        "data.eval": _one_file(verl, "data.val_files"),
        "data.eval_limit": _positive(verl.get("data.val_max_samples")),
    }


def _one_file(verl: _Verl, key: str) -> str | None:
    files = verl.get(key)
    if not isinstance(files, list):
        return files
    if len(files) > 1:
        verl.note(f"{key} has {len(files)} files; a dataset here is one file or one folder. Only the first was taken.")
    return files[0] if files else None


def _env(verl: _Verl) -> Settings:
    multi_turn = "actor_rollout_ref.rollout.multi_turn"
    tools = verl.get(f"{multi_turn}.tool_config_path", "data.tool_config_path")
    if functions := verl.get(f"{multi_turn}.function_tool_path", "data.function_tool_path"):
        verl.note(
            f"The functions of {functions} are tools here as well: put `from agentloop import tool` and @tool in place "
            "of @function_tool, and name each under env.tools as 'file.py:function'."
        )
    return {"env.tools": [{"name": "verl", "options": {"config": tools}}] if tools else None, **_reward(verl)}


def _reward(verl: _Verl) -> Settings:
    options: Settings
    path = verl.get("reward.custom_reward_function.path", "custom_reward_function.path")
    if path:
        name = verl.get("reward.custom_reward_function.name", "custom_reward_function.name", default="compute_score")
        kwargs = verl.get("reward.custom_reward_function.reward_kwargs", "custom_reward_function.reward_kwargs")
        options = {"function": f"{path}:{name}"} | ({"reward_kwargs": kwargs} if kwargs else {})
    else:
        options = {"function": "verl.utils.reward_score:default_compute_score"}
        verl.note(
            "The reward is verl's own default_compute_score, for which verl has to be installed. Rewards of agentloop "
            "may do instead: 'math', 'last_number', 'code_tests' (docs/rewards.md)."
        )
    if verl.get("reward.reward_model.enable", "reward_model.enable", default=False):
        verl.note("A reward model is not trained or served here: ask one over HTTP, with the reward 'judge'.")
    return {"env.reward": "verl", "env.reward_options": options}


def _limits(verl: _Verl) -> Settings:
    multi_turn = "actor_rollout_ref.rollout.multi_turn"
    longest, response = _lengths(verl)
    settings: Settings = {"limits.max_tokens": longest, "limits.max_turn_tokens": response}
    if not verl.get(f"{multi_turn}.enable", default=False) and not verl.get(f"{multi_turn}.tool_config_path"):
        return settings | {"limits.max_turns": 1}
    characters = verl.get(f"{multi_turn}.max_tool_response_length", default=256)
    verl.note(
        f"verl cuts results of tools at {characters} characters; limits.max_observation_tokens counts tokens, about "
        f"{_CHARACTERS_PER_TOKEN} characters each."
    )
    return settings | {
        "limits.max_turns": verl.get(f"{multi_turn}.max_assistant_turns"),
        "limits.max_parallel_calls": verl.get(f"{multi_turn}.max_parallel_calls"),
        "limits.max_observation_tokens": max(characters // _CHARACTERS_PER_TOKEN, 64),
    }


def _lengths(verl: _Verl) -> tuple[int, int]:
    """Most tokens of an episode, and of what follows its prompt."""
    response = verl.get("data.max_response_length", default=512)
    return verl.get("data.max_prompt_length", default=512) + response, response


def _sampling(verl: _Verl) -> Settings:
    rollout = "actor_rollout_ref.rollout"
    engine = verl.get(f"{rollout}.name", default="vllm")
    if engine not in ("vllm", "sglang"):
        verl.note(f"There is no engine {engine!r} here; vllm was taken.")
        engine = "vllm"
    options = {"tensor_parallel_size": verl.get(f"{rollout}.tensor_model_parallel_size", default=1)}
    memory = verl.get(f"{rollout}.gpu_memory_utilization")
    if engine == "vllm" and memory is not None:
        options["gpu_memory_utilization"] = memory
    return {
        "rendering.chat_template_kwargs": verl.get("data.apply_chat_template_kwargs") or None,
        "sampling.temperature": verl.get(f"{rollout}.temperature"),
        "sampling.top_p": verl.get(f"{rollout}.top_p"),
        "sampling.top_k": max(verl.get(f"{rollout}.top_k", default=0), 0),
        "engine.name": engine,
        "engine.options": options,
    }


def _algorithm(verl: _Verl) -> Settings:
    advantage = verl.named(_ADVANTAGES, "algorithm.adv_estimator", "gae")
    if advantage == "grpo" and not verl.get("algorithm.norm_adv_by_std_in_grpo", default=True):
        advantage = "dr_grpo"
    settings: Settings = {
        "algorithm.advantage": advantage,
        "algorithm.group_size": verl.get("actor_rollout_ref.rollout.n", default=1),
        "algorithm.groups_per_step": verl.get("data.train_batch_size"),
    }
    if verl.get("algorithm.filter_groups.enable", default=False):
        rounds = _positive(verl.get("algorithm.filter_groups.max_num_gen_batches"))
        settings["algorithm.dynamic_sampling"] = {"max_rounds": rounds} if rounds else {}
    if verl.get("algorithm.use_kl_in_reward", default=False):
        settings["algorithm.kl_in_reward"] = verl.get("algorithm.kl_ctrl.kl_coef")
    if advantage == "gae":
        settings["critic.lr"] = verl.get("critic.optim.lr")
        settings["critic.warmup_steps"] = verl.get("trainer.critic_warmup")
    return settings


def _loss(verl: _Verl) -> Settings:
    actor = "actor_rollout_ref.actor"
    loss = verl.named(_LOSSES, f"{actor}.policy_loss.loss_mode", "vanilla")
    aggregation = str(verl.get(f"{actor}.loss_agg_mode", default="token-mean")).replace("-", "_")
    settings: Settings = {
        "learner.loss": loss,
        "learner.aggregation": aggregation,
        "learner.entropy_bonus": verl.get(f"{actor}.entropy_coeff"),
    }
    if loss == "ppo":
        clip = verl.get(f"{actor}.clip_ratio", default=0.2)
        settings["learner.loss_options"] = {
            "clip_low": verl.get(f"{actor}.clip_ratio_low", default=clip),
            "clip_high": verl.get(f"{actor}.clip_ratio_high", default=clip),
            "dual_clip": verl.get(f"{actor}.clip_ratio_c", default=3.0),
        }
    elif loss is not None:
        verl.note(f"The bounds of {loss} are those of its paper: check learner.loss_options.")
    if aggregation == "seq_mean_token_sum_norm":
        scale = verl.get(f"{actor}.loss_scale_factor", "data.max_response_length")
        settings["learner.aggregation_norm"] = scale
    if verl.get(f"{actor}.use_kl_loss", default=False):
        settings["learner.kl_coef"] = verl.get(f"{actor}.kl_loss_coef")
        settings["learner.kl_estimator"] = verl.named(_KL_ESTIMATORS, f"{actor}.kl_loss_type", "low_var_kl")
    return settings | _corrections(verl)


def _corrections(verl: _Verl) -> Settings:
    level = verl.get("algorithm.rollout_correction.rollout_is")
    if verl.get("algorithm.rollout_correction.rollout_rs") is not None:
        verl.note("algorithm.rollout_correction.rollout_rs: see 'reject' and 'mask' in docs/algorithms.md.")
    if level is None:
        return {}
    cap = verl.get("algorithm.rollout_correction.rollout_is_threshold", default=2.0)
    if level not in ("token", "sequence"):
        verl.note(f"algorithm.rollout_correction.rollout_is={level} has no counterpart; known are token, sequence.")
        return {}
    return {"learner.corrections": [{"name": "truncate", "options": {"level": level, "cap": cap}}]}


def _optimizer(verl: _Verl) -> Settings:
    optim = "actor_rollout_ref.actor.optim"
    steps = verl.get("trainer.total_training_steps")
    warmup = verl.get(f"{optim}.lr_warmup_steps", default=-1)
    ratio = verl.get(f"{optim}.lr_warmup_steps_ratio", default=0.0)
    if warmup < 0:
        warmup = int(ratio * steps) if steps else 0
        if ratio and not steps:
            verl.note(f"{optim}.lr_warmup_steps_ratio={ratio} is of a number of steps that is not said: set warmup.")
    schedule = verl.get(f"{optim}.lr_scheduler_type", f"{optim}.warmup_style", default="constant")
    if schedule not in _SCHEDULES:
        verl.note(f"{optim}.lr_scheduler_type={schedule} has no counterpart; known are {', '.join(_SCHEDULES)}.")
    return {
        "learner.lr": verl.get(f"{optim}.lr"),
        "learner.lr_schedule": _SCHEDULES.get(schedule),
        "learner.warmup_updates": warmup,
        "learner.betas": verl.get(f"{optim}.betas"),
        "learner.weight_decay": verl.get(f"{optim}.weight_decay"),
        "learner.grad_clip": verl.get(f"{optim}.clip_grad", "actor_rollout_ref.actor.grad_clip"),
    }


def _batches(verl: _Verl) -> Settings:
    actor, (longest, _) = "actor_rollout_ref.actor", _lengths(verl)
    tasks, per_update = verl.get("data.train_batch_size", default=1024), verl.get(f"{actor}.ppo_mini_batch_size")
    if per_update and tasks % per_update:
        verl.note(f"{tasks} tasks a step are no whole number of mini-batches of {per_update}: check mini_batches.")
    if verl.get(f"{actor}.ppo_epochs", default=1) > 1:
        verl.note(f"{actor}.ppo_epochs: a batch is trained on once here.")
    if verl.get(f"{actor}.use_dynamic_bsz", default=False):
        budget = verl.get(f"{actor}.ppo_max_token_len_per_gpu", default=16384)
    else:
        budget = longest * verl.get(f"{actor}.ppo_micro_batch_size_per_gpu", default=1)
    return {
        "learner.mini_batches": max(tasks // per_update, 1) if per_update else None,
        "learner.token_budget": max(budget, longest),  # no trajectory may be longer
    }


def _hardware(verl: _Verl) -> Settings:
    actor = "actor_rollout_ref.actor"
    nodes, per_node = verl.get("trainer.nnodes", default=1), verl.get("trainer.n_gpus_per_node", default=8)
    backend = "megatron" if verl.get(f"{actor}.strategy") == "megatron" else "fsdp"
    settings: Settings = {
        "placement.n_gpus": nodes * per_node,
        "placement.nnodes": nodes,
        "placement.layout": "colocated",
        "placement.sleep": _takes_turns(verl, f"{actor}.{'megatron' if backend == 'megatron' else 'fsdp_config'}"),
        "learner.backend": backend,
        "learner.compute_dtype": "bfloat16",
        "learner.checkpointing": _checkpointing(verl),
        "learner.freeze_vision": verl.get(f"{actor}.freeze_vision_tower") or None,
    }
    settings |= _lora(verl)
    if backend == "fsdp":
        settings["learner.offload"] = "all" if verl.get(f"{actor}.fsdp_config.offload_policy") else None
        ulysses = f"{actor}.fsdp_config.ulysses_sequence_parallel_size"
        return settings | {"learner.sequence_parallel": verl.get(ulysses, f"{actor}.ulysses_sequence_parallel_size")}
    sizes = {"tensor": "tensor_model", "pipeline": "pipeline_model", "context": "context", "expert": "expert_model"}
    return settings | {
        f"learner.{ours}_parallel": verl.get(f"{actor}.megatron.{theirs}_parallel_size")
        for ours, theirs in sizes.items()
    }


def _takes_turns(verl: _Verl, learner: str) -> bool | None:
    """verl's offload is of a learner that does not train, as its engines free their memory while they do not sample."""
    rollout = "actor_rollout_ref.rollout"
    frees = [verl.get(f"{rollout}.{name}", default=True) for name in ("free_cache_engine", "enable_sleep_mode")]
    offloads = [verl.get(f"{learner}.{what}_offload", default=False) for what in ("param", "optimizer")]
    return all(frees) or any(offloads) if _is_synchronous(verl) else None


def _is_synchronous(verl: _Verl) -> bool:
    return bool(verl.get("trainer.v1.trainer_mode", default="sync") == "sync")


def _lora(verl: _Verl) -> Settings:
    model = "actor_rollout_ref.model"
    rank = verl.get(f"{model}.lora_rank", default=0)
    alpha, targets = (
        verl.get(f"{model}.lora_alpha", default=16),
        verl.get(f"{model}.target_modules", default="all-linear"),
    )
    if not rank:
        return {}
    return {
        "learner.lora.rank": rank,
        "learner.lora.alpha": alpha,
        "learner.lora.targets": "all" if targets == "all-linear" else targets,
    }


def _checkpointing(verl: _Verl) -> str:
    return "full" if verl.get("actor_rollout_ref.model.enable_gradient_checkpointing", default=True) else "off"


def _run(verl: _Verl) -> Settings:
    kwargs = "actor_rollout_ref.rollout.val_kwargs"
    steps = verl.get("trainer.total_training_steps")
    if not steps:
        epochs = verl.get("trainer.total_epochs", default=30)
        verl.note(f"verl goes {epochs} times through the dataset; here run.steps says how long a run is: set it.")
    mode = verl.get("trainer.v1.trainer_mode", default="sync")
    if mode != "sync":
        verl.note(f"trainer.v1.trainer_mode={mode}: choose staleness.mode by docs/async.md.")
    known = {"tensorboard", "wandb"}
    loggers = verl.get("trainer.logger", default=[])
    samples = verl.get(f"{kwargs}.do_sample", default=False)
    return {
        "eval.every": _positive(verl.get("trainer.test_freq")),
        "eval.samples": verl.get(f"{kwargs}.n"),
        "eval.temperature": verl.get(f"{kwargs}.temperature") if samples else 0.0,
        "eval.top_p": verl.get(f"{kwargs}.top_p") if samples else None,
        "run.steps": steps,
        "run.save_every": _positive(verl.get("trainer.save_freq")),
        "run.keep_last": _positive(verl.get("trainer.max_actor_ckpt_to_keep")),
        "run.seed": verl.get("data.seed"),
        "run.loggers": [name for name in ([loggers] if isinstance(loggers, str) else loggers) if name in known] or None,
    }


_PARTS: tuple[Callable[[_Verl], Settings], ...] = (
    _data, _env, _limits, _sampling, _algorithm, _loss, _optimizer, _batches, _hardware, _run,
)  # fmt: skip


_PATHS = ("data.train", "data.eval", "env.tools", "env.reward_options")


def _is_relative(value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_relative(each["options"]["config"]) for each in value)
    if isinstance(value, dict):
        return ".py:" in value["function"] and _is_relative(value["function"])
    return value is not None and not str(value).startswith(("/", "~"))


def _positive(value: Any) -> Any:
    """verl writes -1 or 0 for "no"."""
    return value if value is not None and value > 0 else None


def _unused(verl: _Verl, overrides: Path) -> list[str]:
    """What somebody said on verl's command line that nothing here was made of."""
    if not overrides.is_file():
        return []
    said = [str(each).lstrip("+~").partition("=")[0] for each in OmegaConf.load(overrides)]
    return [f"{key} was set, and has no counterpart that is known here." for key in said if key not in verl.asked]


def _nested(settings: Settings) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, name = key.split(".")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return config
