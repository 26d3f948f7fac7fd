from pathlib import Path

import pytest
import yaml

from agentloop.cli import main
from agentloop.config_loading import load_config
from agentloop.errors import UserError
from agentloop.trainer.from_verl import convert
from agentloop.trainer.run_config import RunConfig

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
  kl_coef: 0.01
  kl_estimator: k3
  corrections: [{name: truncate, options: {level: token, cap: 3.0}}]
  lr: 1.0e-06
  lr_schedule: constant
  warmup_updates: 10
  betas: [0.9, 0.95]
  weight_decay: 0.1
  mini_batches: 8
  token_budget: 18432
  backend: fsdp
  compute_dtype: bfloat16
  checkpointing: full
  sequence_parallel: 4
placement: {n_gpus: 16, nnodes: 2, layout: colocated, sleep: true}
eval: {every: 5, samples: 30, temperature: 1.0, top_p: 0.6}
run: {steps: 200, save_every: 20, seed: 7, loggers: [wandb]}
"""


def _written(folder: Path, text: str) -> Path:
    (folder / ".hydra").mkdir()
    path = folder / ".hydra" / "config.yaml"
    path.write_text(text)
    return path


def test_a_multi_turn_config_setting_by_setting(tmp_path: Path):
    source = _written(tmp_path, RETOOL.replace("${mul_missing:}", "${data.max_prompt_length}"))
    (tmp_path / ".hydra" / "overrides.yaml").write_text(
        "- data.train_batch_size=512\n- +actor_rollout_ref.rollout.mystery=1\n"
    )
    converted = convert(source)
    assert converted.config == yaml.safe_load(AS_OURS)
    cut, mystery = converted.notes
    assert "at 4096 characters" in cut
    assert mystery.startswith("actor_rollout_ref.rollout.mystery was set")


def test_the_defaults_of_the_real_verl_are_a_config_here(verl_package: Path, tmp_path: Path, capsys):
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
    assert "30 times through the dataset" in head


def test_megatron_of_the_real_verl(verl_package: Path, tmp_path: Path, capsys):
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
def test_memory_that_is_given_back_in_turns(tmp_path: Path, rollout: str, actor: str, sleep: bool, offload: str | None):
    text = f"actor_rollout_ref: {{model: {{path: m}}, rollout: {{{rollout}}}, actor: {{{actor}}}}}"
    converted = convert(_written(tmp_path, text))
    assert converted.config["placement"]["sleep"] is sleep
    assert converted.config["learner"].get("offload") == offload


def test_what_has_no_counterpart_is_said(tmp_path: Path):
    text = """
    actor_rollout_ref:
      model: {path: m}
      actor: {policy_loss: {loss_mode: dppo_kl}, ppo_epochs: 2, ppo_mini_batch_size: 48}
      rollout: {name: trtllm}
    data: {train_files: [a.parquet, b.parquet], train_batch_size: 100}
    algorithm: {adv_estimator: gdpo, rollout_correction: {rollout_is: token_k1, rollout_rs: token}}
    trainer: {v1: {trainer_mode: separate_async}, total_training_steps: 5}
    reward_model: {enable: true}
    """
    converted = convert(_written(tmp_path, text))
    for said in (
        "loss_mode=dppo_kl has no counterpart",
        "adv_estimator=gdpo has no counterpart",
        "rollout_is=token_k1 has no counterpart",
        "rollout_rs",
        "no engine 'trtllm'",
        "ppo_epochs",
        "100 tasks a step are no whole number of mini-batches of 48",
        "data.train_files has 2 files",
        "staleness.mode",
        "A reward model is not trained",
        "Relative paths start at the folder of this file: check data.train.",
    ):
        assert any(said in note for note in converted.notes), said
    assert "sleep" not in converted.config["placement"]  # engines that sample meanwhile cannot
    assert "loss" not in converted.config["learner"]
    assert converted.config["engine"]["name"] == "vllm"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "There is no file"),
        ("- a\n", "is no config of verl"),
        ("a: {", "cannot be read"),
        ("model: x\n", "is no config of verl"),
        (RETOOL, "ppo_max_token_len_per_gpu cannot be resolved"),
    ],
)
def test_what_is_no_config_of_verl(tmp_path: Path, text: str | None, said: str):
    source = tmp_path / "nothing.yaml" if text is None else _written(tmp_path, text)
    with pytest.raises(UserError, match=said):
        convert(source)
