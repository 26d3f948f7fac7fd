import shlex
from pathlib import Path

import pytest
import yaml

from agentloop.cli import main
from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.from_verl import convert
from agentloop.trainer.run.checks import check_trainable

RETOOL = """
data:
  train_files: /data/dapo.parquet
  val_files: [/data/aime.parquet]
  train_max_samples: -1
  train_batch_size: 512
  max_prompt_length: 2048
  max_response_length: 16384
  shuffle: false
  seed: 7
actor_rollout_ref:
  model: {path: /models/qwen, enable_gradient_checkpointing: true}
  actor:
    strategy: fsdp2
    optim: {lr: 1.0e-06, lr_warmup_steps: -1, lr_warmup_steps_ratio: 0.05, betas: [0.9, 0.95], weight_decay: 0.1}
    fsdp_config: {param_offload: false, optimizer_offload: true, ulysses_sequence_parallel_size: 4}
    ppo_mini_batch_size: 64
    use_dynamic_bsz: true
    ppo_max_token_len_per_gpu: ${mul_missing:}
    clip_ratio: 0.2
    clip_ratio_low: 0.2
    clip_ratio_high: 0.28
    clip_ratio_c: 10.0
    policy_loss: {loss_mode: vanilla}
    loss_agg_mode: token-mean
    use_kl_loss: true
    kl_loss_coef: 0.01
    kl_loss_type: low_var_kl
  rollout:
    name: vllm
    n: 16
    temperature: 1.0
    top_p: 0.6
    top_k: -1
    tensor_model_parallel_size: 4
    gpu_memory_utilization: 0.9
    response_length: ${oc.select:data.max_response_length,512}
    multi_turn:
      enable: true
      max_assistant_turns: 8
      max_parallel_calls: 1
      max_tool_response_length: 4096
      tool_config_path: /recipe/tools.yaml
    val_kwargs: {n: 30, do_sample: true, temperature: 1.0, top_p: 0.6}
algorithm:
  adv_estimator: grpo
  norm_adv_by_std_in_grpo: true
  filter_groups: {enable: true, max_num_gen_batches: 5}
  rollout_correction: {rollout_is: token, rollout_is_threshold: 3.0}
reward:
  custom_reward_function: {path: /recipe/retool.py, name: compute_score, reward_kwargs: {strict: true}}
trainer:
  nnodes: 2
  n_gpus_per_node: 8
  total_training_steps: 200
  save_freq: 20
  test_freq: 5
  logger: [console, wandb]
"""

AS_OURS = """
model: /models/qwen
data: {train: /data/dapo.parquet, shuffle: false, eval: /data/aime.parquet}
env:
  tools: [{name: verl, options: {config: /recipe/tools.yaml}}]
  reward: verl
  reward_options: {function: '/recipe/retool.py:compute_score', reward_kwargs: {strict: true}}
limits: {max_tokens: 18432, max_turn_tokens: 16384, max_turns: 8, max_parallel_calls: 1, max_observation_tokens: 1024}
sampling: {temperature: 1.0, top_p: 0.6, top_k: 0}
engine: {name: vllm, options: {tensor_parallel_size: 4, gpu_memory_utilization: 0.9}}
algorithm: {advantage: grpo, group_size: 16, groups_per_step: 512, dynamic_sampling: {max_rounds: 5}}
learner:
  loss: ppo
  aggregation: token_mean
  loss_options: {clip_low: 0.2, clip_high: 0.28, dual_clip: 10.0}
  old_logprobs: learner
  kl_coef: 0.01
  kl_estimator: k3
  corrections: [{name: truncate, options: {level: token, cap: 3.0}}]
  lr: 1.0e-06
  lr_schedule: constant
  warmup_updates: 80  # verl counts steps
  betas: [0.9, 0.95]
  weight_decay: 0.1
  mini_batches: 8
  token_budget: 18432  # 4 ranks with 2,048 tokens each hold less than an episode
  backend: fsdp
  compute_dtype: bfloat16
  checkpointing: full
  sequence_parallel: 4
placement: {n_gpus: 16, nnodes: 2, layout: colocated, sleep: true}
eval: {every: 5, samples: 30, temperature: 1.0, top_p: 0.6}
run: {steps: 200, save_every: 20, seed: 7, loggers: [wandb]}
"""


def _truncated(cap: float) -> dict[str, object]:
    return {"name": "truncate", "options": {"level": "token", "cap": cap}}


def _written(folder: Path, text: str) -> Path:
    (folder / ".hydra").mkdir()
    path = folder / ".hydra" / "config.yaml"
    path.write_text(text)
    return path


def test_every_setting_of_a_multi_turn_config(tmp_path: Path):
    source = _written(tmp_path, RETOOL.replace("${mul_missing:}", "${data.max_prompt_length}"))
    (tmp_path / ".hydra" / "overrides.yaml").write_text(
        "- data.train_batch_size=512\n- +actor_rollout_ref.rollout.mystery=1\n"
    )
    converted = convert(source)
    assert converted.config == yaml.safe_load(AS_OURS)
    (added, cut), (mystery,) = converted.notes, converted.lacks
    assert added.startswith("Rewards that tools return are added")
    assert "at 4096 characters" in cut
    assert mystery.startswith("actor_rollout_ref.rollout.mystery was set")


def test_a_config_without_the_overrides_of_its_run_is_converted_with_a_note(tmp_path: Path):
    source = _written(tmp_path, "actor_rollout_ref: {model: {path: m}, rollout: {mystery: 1}}")
    assert any("no overrides.yaml next to config.yaml" in note for note in convert(source).notes)


def test_the_defaults_of_verl_give_a_valid_config(verl_package: Path, tmp_path: Path, capsys):
    source = verl_package / "verl" / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    _succeeds("from-verl", str(source), "-o", str(tmp_path / "run.yaml"))
    assert "Wrote" in capsys.readouterr().out
    config = load_config(RunConfig, tmp_path / "run.yaml")
    assert (config.algorithm.advantage, config.algorithm.groups_per_step, config.learner.mini_batches) == (
        "gae",
        1024,
        4,
    )
    head = (tmp_path / "run.yaml").read_text().partition("model:")[0]
    assert "verl's own default_compute_score" in head
    assert config.run.epochs == 30


def test_the_megatron_defaults_of_verl(verl_package: Path, tmp_path: Path, capsys):
    source = verl_package / "verl" / "trainer" / "config" / "_generated_ppo_megatron_trainer.yaml"
    _succeeds("from-verl", str(source))
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["learner"]["backend"] == "megatron"
    assert [config["learner"][f"{size}_parallel"] for size in ("tensor", "pipeline", "context", "expert")] == [1] * 4
    assert "offload" not in config["learner"]


def _succeeds(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code


@pytest.mark.parametrize(
    ("options", "lora"),
    [
        ("", None),
        (", lora_rank: 8, target_modules: all-linear", {"rank": 8, "alpha": 16, "targets": "all"}),
        (", lora_rank: 8, lora_alpha: 32, target_modules: [q_proj]", {"rank": 8, "alpha": 32, "targets": ["q_proj"]}),
    ],
)
def test_adapters(tmp_path: Path, options: str, lora: object):
    converted = convert(_written(tmp_path, f"actor_rollout_ref: {{model: {{path: m{options}}}}}"))
    assert converted.config["learner"].get("lora") == lora


@pytest.mark.parametrize(
    ("rollout", "actor", "sleep", "offload"),
    [
        ("", "", True, None),  # verl's default
        ("free_cache_engine: false", "", False, None),
        ("enable_sleep_mode: false", "", False, None),
        ("free_cache_engine: false", "fsdp_config: {param_offload: true}", True, None),
        ("free_cache_engine: false", "strategy: megatron, megatron: {optimizer_offload: true}", True, None),
        ("", "fsdp_config: {offload_policy: true}", True, "all"),
    ],
)
def test_sleep_and_offload(tmp_path: Path, rollout: str, actor: str, sleep: bool, offload: str | None):
    text = f"actor_rollout_ref: {{model: {{path: m}}, rollout: {{{rollout}}}, actor: {{{actor}}}}}"
    converted = convert(_written(tmp_path, text))
    assert converted.config["placement"]["sleep"] is sleep
    assert converted.config["learner"].get("offload") == offload


def test_settings_without_counterpart_are_reported_and_not_trained(tmp_path: Path):
    text = """
    actor_rollout_ref:
      model: {path: m}
      actor: {policy_loss: {loss_mode: kl_cov}, loss_agg_mode: token-sum, ppo_epochs: 2, ppo_mini_batch_size: 48}
      rollout: {name: trtllm}
    data: {train_files: a.parquet, train_batch_size: 100}
    algorithm: {adv_estimator: gdpo, rollout_correction: {rollout_is: token_k1, rollout_rs: seq_max_k3}}
    trainer: {total_training_steps: 5}
    reward_model: {enable: true, reward_manager: batch}
    """
    converted = convert(_written(tmp_path, text))
    for message in (
        "loss_mode=kl_cov is not known",
        "loss_agg_mode=token-sum is not known",
        "adv_estimator=gdpo is not known",
        "rollout_is=token_k1 is not known",
        "rollout_rs=seq_max_k3",
        "ppo_epochs=2",
        "A reward model is not trained",
        "reward manager 'batch'",
    ):
        assert any(message in lack for lack in converted.lacks), message
    for message in (
        "100 tasks per step are not a multiple of mini-batches of 48",
        "rollout.name=trtllm",
        "Relative paths are relative to the folder of this file: check data.train.",
    ):
        assert any(message in note for note in converted.notes), message
    assert converted.config["engine"]["name"] == "vllm"
    assert converted.config["learner"]["mini_batches"] == 3
    # Names that only verl knows stay, so that no run starts with something else.
    with pytest.raises(UserError, match=r"token_sum"):
        load_config(RunConfig, _saved(tmp_path, converted.config))
    converted.config["learner"]["aggregation"] = None
    with pytest.raises(UserError, match=r"'gdpo'"):
        check_trainable(load_config(RunConfig, _saved(tmp_path, converted.config)))


def _saved(folder: Path, config: object) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        # verl computes the old policy with the learner, unless in bypass mode.
        ("", {"old_logprobs": "learner", "loss": "ppo"}),
        ("algorithm.rollout_correction.bypass_mode=True", {"old_logprobs": "rollout", "loss": "ppo"}),
        (
            "algorithm.rollout_correction.rollout_is=sequence",
            {"corrections": [{"name": "truncate", "options": {"level": "sequence", "cap": 2.0}}]},
        ),
        (
            "algorithm.rollout_correction.rollout_is=token algorithm.rollout_correction.rollout_is_threshold=0.5_5.0",
            {"corrections": [{"name": "mask", "options": {"level": "token", "low": 0.5, "high": 5.0}}]},
        ),
        ("+actor_rollout_ref.actor.tis_imp_ratio_cap=3", {"corrections": [_truncated(3.0)]}),
        (
            "algorithm.rollout_correction.rollout_rs=\"'seq_mean_k1,token_k2'\" "
            "algorithm.rollout_correction.rollout_rs_threshold=\"'0.8_1.25,0.02'\"",
            {
                "corrections": [
                    {"name": "reject", "options": {"level": "geometric", "low": 0.8, "high": 1.25}},
                    # log(r)^2 / 2 up to 0.02 is |log r| up to 0.2.
                    {"name": "reject", "options": {"level": "token", "low": 0.818730753, "high": 1.221402758}},
                ]
            },
        ),
        (
            "algorithm.rollout_correction.bypass_mode=True algorithm.rollout_correction.loss_type=reinforce "
            "algorithm.rollout_correction.rollout_is=token",
            # The policy gradient with min(current / sampling policy, 2) as weight.
            {"loss": "cispo", "loss_options": {"clip_low": 1.0, "clip_high": 1.0}, "old_logprobs": "rollout"},
        ),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gpg", {"loss": "reinforce", "aggregation": "token_mean"}),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode=gspo actor_rollout_ref.actor.clip_ratio_low=3e-4 "
            "actor_rollout_ref.actor.clip_ratio_high=4e-4",
            {
                "loss": "gspo",
                "loss_options": {"clip_low": 3e-4, "clip_high": 4e-4},
                "aggregation": "token_mean",
            },
        ),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean actor_rollout_ref.actor.clip_ratio_low=0.4",
            {
                "loss": "gmpo",
                "loss_options": {"clip_low": 0.4, "clip_high": 0.2},
                "aggregation": "seq_mean_token_mean",  # for any loss_agg_mode
            },
        ),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode=cispo actor_rollout_ref.actor.clip_ratio_low=10",
            {"loss": "cispo", "loss_options": {"clip_low": 1.0, "clip_high": 0.2}},  # ratios are positive
        ),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode=sapo actor_rollout_ref.actor.tau_neg=1.2",
            {"loss": "sapo", "loss_options": {"temperature_positive": 1.0, "temperature_negative": 1.2}},
        ),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode=dppo_tv actor_rollout_ref.actor.clip_ratio_c=50",
            {"loss": "dppo_tv", "loss_options": {"low": 0.2, "high": 0.2, "cap": 50.0}},
        ),
        (
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm data.max_response_length=4096",
            {"aggregation": "seq_mean_token_sum_norm", "aggregation_norm": 4096.0},
        ),
        (
            "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=k3+",
            {"kl_coef": 0.001, "kl_estimator": "k2"},  # k3+ has the gradient of k2
        ),
        (
            "algorithm.use_kl_in_reward=True actor_rollout_ref.model.path=m",
            {"reference": "m"},
        ),
        (
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size=4 "
            "actor_rollout_ref.actor.use_dynamic_bsz=True "
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192",
            {"sequence_parallel": 4, "token_budget": 32768},
        ),
        (
            "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16 "
            "actor_rollout_ref.actor.optim.lr_warmup_steps=5 "
            "actor_rollout_ref.actor.optim.warmup_style=cosine",
            {"mini_batches": 4, "warmup_updates": 20, "lr_schedule": "cosine"},
        ),
        (  # 0 steps count as unset
            "trainer.total_training_steps=200 actor_rollout_ref.actor.optim.lr_warmup_steps=0 "
            "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05",
            {"warmup_updates": 10},
        ),
        (
            "actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.megatron.context_parallel_size=2",
            {"backend": "megatron", "context_parallel": 2, "token_budget": 1024},
        ),
    ],
)
def test_settings_of_the_learner(command: str, ours: dict[str, object]):
    """Convert overrides of a command, over the defaults of verl."""
    converted = convert("data.train_batch_size=256", *shlex.split(command))
    found = converted.config["learner"]
    assert {key: found.get(key) for key in ours} == ours
    assert converted.lacks == []


@pytest.mark.parametrize(
    ("command", "section", "ours"),
    [
        (
            "algorithm.adv_estimator=gae algorithm.lam=0.95 critic.ppo_mini_batch_size=64",
            "critic",
            {"model": None, "lr": 1e-5, "mini_batches": 4, "clip": 0.5, "warmup_steps": 0},
        ),
        (
            "algorithm.adv_estimator=gae algorithm.gamma=0.99 algorithm.lam=0.95",
            "algorithm",
            {"advantage": "gae", "advantage_options": {"gamma": 0.99, "lam": 0.95, "critic_lam": 0.95}},
        ),
        (
            "algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False",
            "algorithm",
            {"advantage": "dr_grpo"},
        ),
        (
            "algorithm.filter_groups.enable=True data.gen_batch_size=768",
            "algorithm",
            {"dynamic_sampling": {"oversampling": 3.0, "max_rounds": 100}},
        ),
        (
            "reward.reward_manager.name=dapo +reward.reward_kwargs.max_resp_len=20480 "
            "+reward.reward_kwargs.overlong_buffer_cfg={enable:True,len:4096,penalty_factor:0.5}",
            "algorithm",
            {"overlong": {"max_sampled_tokens": 20480, "buffer": 4096, "penalty": 0.5}},
        ),
        (
            "reward_model.reward_manager=dapo +reward_model.overlong_buffer.enable=True "
            "+reward_model.overlong_buffer.len=128 +reward_model.overlong_buffer.penalty_factor=1",
            "algorithm",
            {"overlong": {"max_sampled_tokens": 512, "buffer": 128, "penalty": 1.0}},
        ),
        # Only the reward manager dapo has a length penalty.
        ("+reward.reward_kwargs.overlong_buffer_cfg.enable=True", "algorithm", {"overlong": None}),
        (
            "data.filter_overlong_prompts=True data.max_prompt_length=2048 data.train_files=['a','b']",
            "data",
            {"max_prompt_tokens": 2048, "train": ["a", "b"]},
        ),
        (
            "actor_rollout_ref.rollout.multi_turn.enable=True actor_rollout_ref.rollout.multi_turn.max_user_turns=2",
            "limits",
            {"max_turns": 3, "max_parallel_calls": 1, "max_tokens": 1024, "max_turn_tokens": 512},
        ),
        (
            "custom_reward_function.path=pkg://mine/rewards",
            "env",
            {"reward": "verl", "reward_options": {"function": "mine.rewards:compute_score"}},
        ),
        (
            "custom_reward_function.path=file:///r.py",
            "env",
            {"reward": "verl", "reward_options": {"function": "/r.py:compute_score"}},
        ),
        (
            "custom_reward_function.path=/r.py +custom_reward_function.reward_kwargs.scale=2",
            "env",
            {"reward_options": {"function": "/r.py:compute_score", "reward_kwargs": {"scale": 2}}},
        ),
        (
            "actor_rollout_ref.rollout.name=vllm "
            "+actor_rollout_ref.model.override_config.max_position_embeddings=9 "
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=fp8",
            "engine",
            {
                "options": {
                    "tensor_parallel_size": 2,
                    "gpu_memory_utilization": 0.5,
                    "hf_overrides": {"max_position_embeddings": 9},
                    "kv_cache_dtype": "fp8",
                }
            },
        ),
        (
            "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.quantization=fp8",
            "engine",
            {"options": {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.5, "quantization": "fp8"}},
        ),
        ("trainer.nnodes=2", "placement", {"n_gpus": 16, "nnodes": 2, "layout": "colocated", "sleep": True}),
        (
            "trainer.project_name=p trainer.experiment_name=a/b trainer.total_epochs=3",
            "run",
            {"folder": "runs/p/a-b", "epochs": 3.0, "steps": None, "save_every": None},
        ),
        ("trainer.project_name=p trainer.resume_mode=disable", "run", {"folder": None}),
        (
            "trainer.project_name=p trainer.logger=[console,wandb,mlflow,tensorboard]",
            "run",
            {
                "loggers": [
                    {"name": "wandb", "options": {"project": "p"}},
                    {"name": "mlflow", "options": {"experiment": "p"}},
                    "tensorboard",
                ]
            },
        ),
        (
            # verl's agent loops ignore do_sample.
            "actor_rollout_ref.rollout.val_kwargs={n:4,do_sample:False,temperature:0.6,top_p:0.7} trainer.test_freq=5",
            "eval",
            {"every": 5, "samples": 4, "temperature": 0.6, "top_p": 0.7},
        ),
    ],
)
def test_other_settings(command: str, section: str, ours: dict[str, object]):
    converted = convert("data.train_batch_size=256", *shlex.split(command))
    found = converted.config[section]
    assert {key: found.get(key) for key in ours} == ours
    assert converted.lacks == []


def test_dropout_is_reported_unless_it_is_zero():
    actor, model = "+actor_rollout_ref.actor.megatron.override_transformer_config", "+actor_rollout_ref.model"
    keys = f"{actor}.attention_dropout=0.1 {actor}.hidden_dropout=0.0 {model}.override_config.resid_pdrop=0.2"
    lacks = [each for each in convert(*shlex.split(f"-m verl.trainer.main_ppo {keys}")).lacks if "no dropout" in each]
    assert [each.partition(":")[0].rpartition(".override_")[2] for each in lacks] == [
        "transformer_config.attention_dropout=0.1",
        "config.resid_pdrop=0.2",
    ]


def test_steps_take_precedence_over_epochs():
    converted = convert("trainer.total_training_steps=500", "trainer.total_epochs=2")
    assert converted.config["run"]["steps"] == 500
    assert "epochs" not in converted.config["run"]
    assert any("total_epochs=2" in note and "500 steps" in note for note in converted.notes)


@pytest.mark.parametrize("null", ["null", "None"])
def test_a_null_that_counts_as_a_number_is_reported(null: str):
    converted = convert(f"data.train_batch_size={null}", "data.seed=1")
    assert converted.config["algorithm"]["groups_per_step"] == 1024
    assert "data.train_batch_size has no value, and counts as 1024 here." in converted.notes
    assert not any("counts as" in note for note in convert("data.train_batch_size=8", "data.seed=null").notes)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.seed=${data.nothing}", r"verl's data\.seed: Interpolation key 'data\.nothing' not found\. Set what it"),
        (
            "data.seed=${oc.env:NOTHING}",
            r"verl's data\.seed: the variable NOTHING is not passed: add --env NOTHING\. Set",
        ),
        ("data.seed=${", r"^data\.seed='\$\{' cannot be set: \$\{ without }\. Correct it in the command\.$"),
        ("+data.seed.x=1", r"verl's data\.seed is {'x': 1}, which is not a number"),
    ],
)
def test_values_that_cannot_be_resolved_are_refused_in_plain_words(setting: str, message: str):
    with pytest.raises(UserError, match=message):
        convert(setting, "trainer.nnodes=1")


def test_a_step_is_one_synchronisation_of_a_fully_asynchronous_run():
    command = """
    python -m verl.experimental.fully_async_policy.fully_async_main data.train_batch_size=0 trainer.n_gpus_per_node=4
    rollout.nnodes=1 rollout.n_gpus_per_node=4 actor_rollout_ref.actor.ppo_mini_batch_size=32
    async_training.require_batches=4 async_training.trigger_parameter_sync_step=2 rollout.test_freq=5
    async_training.staleness_threshold=0.5 rollout.total_rollout_steps=51200 trainer.total_epochs=10
    actor_rollout_ref.actor.optim.lr_warmup_steps=10
    """
    converted = convert(*command.split())
    config = converted.config
    assert config["algorithm"]["groups_per_step"] == 256  # 2 x 4 x 32 tasks between two synchronisations
    assert (config["learner"]["mini_batches"], config["learner"]["old_logprobs"]) == (8, "rollout")
    assert config["learner"]["warmup_updates"] == 40  # verl's schedule advances once per 4 mini-batches
    assert config["staleness"] == {"mode": "partial", "max_staleness": 1, "allow_uncorrected": True}
    assert config["placement"] == {"n_gpus": 8, "nnodes": 1, "layout": "separate", "learner_gpus": 4}
    assert (config["run"]["steps"], config["eval"]["every"]) == (200, 5)
    assert converted.lacks == []
    without_tasks = convert(*command.replace("total_rollout_steps=51200", "total_rollout_steps=null").split())
    assert without_tasks.config["run"]["epochs"] == 10


@pytest.mark.parametrize(
    ("command", "staleness"),
    [
        ("-m verl.experimental.one_step_off_policy.main_ppo", {"mode": "stale", "max_staleness": 1}),
        (
            "trainer.v1.trainer_mode=colocate_async trainer.v1.sampler.max_off_policy_threshold=1",
            {"mode": "on_policy"},
        ),
        (
            "trainer.v1.trainer_mode=separate_async trainer.v1.sampler.max_off_policy_threshold=3",
            {"mode": "partial", "max_staleness": 2, "when_late": "drop"},  # verl counts the trained version too
        ),
    ],
)
def test_other_asynchronous_runs(command: str, staleness: dict[str, object]):
    # With a correction, staleness.allow_uncorrected is not set.
    corrected = "algorithm.rollout_correction={bypass_mode: False, rollout_is: token, rollout_is_threshold: 2}"
    converted = convert(*shlex.split(command), "data.train_batch_size=8", corrected)
    assert converted.config["staleness"] == staleness
    assert converted.config["learner"]["corrections"] == [_truncated(2.0)]
    assert "sleep" not in converted.config["placement"]  # engines never stop sampling


@pytest.mark.parametrize(
    ("command", "old"),
    [
        ("", "rollout"),
        ("algorithm.rollout_correction.bypass_mode=False", "learner"),
        # Before 0.9 other keys decided this.
        ("async_training.use_rollout_log_probs=False", "learner"),
        ("async_training.use_rollout_log_probs=True async_training.compute_prox_log_prob=True", "learner"),
    ],
)
def test_old_policy_of_a_fully_asynchronous_run(command: str, old: str):
    # In 0.9.1 such a run sets actor.use_rollout_log_probs, which nothing reads.
    module = "-m verl.experimental.fully_async_policy.fully_async_main"
    weights = "algorithm.rollout_correction.rollout_is=token"
    learner = convert(*shlex.split(f"{module} {command} {weights}")).config["learner"]
    assert learner["old_logprobs"] == old
    assert learner.get("corrections", []) == ([_truncated(2.0)] if old == "learner" else [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "There is no file"),
        ("- a\n", "is not a config of verl"),
        ("a: {", "cannot be read"),
        ("model: x\n", "is not a config of verl"),
        (RETOOL, "Cannot resolve verl's .*ppo_max_token_len_per_gpu"),
    ],
)
def test_files_that_are_not_a_config_of_verl_are_refused(tmp_path: Path, text: str | None, message: str):
    source = tmp_path / "nothing.yaml" if text is None else _written(tmp_path, text)
    with pytest.raises(UserError, match=message):
        convert(source)
