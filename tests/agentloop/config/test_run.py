import re
from pathlib import Path
from typing import get_args

import pytest

from agentloop.config.fine_tuning import FineTuningConfig
from agentloop.config.learner import LearnerConfig
from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.config.staleness import Mode
from agentloop.engines import ENGINES
from agentloop.errors import UserError
from agentloop.trainer import advantages, losses
from agentloop.trainer.batch.outcomes import judges_alone
from agentloop.trainer.run.checks import check_trainable

MINIMAL = "model: org/model\ndata: {train: train.jsonl}\nenv: {reward: exact}\n"


def load(tmp_path, *overrides, text=MINIMAL):
    (tmp_path / "config.yaml").write_text(text)
    return load_config(RunConfig, tmp_path / "config.yaml", overrides)


def test_three_lines_are_a_config_that_can_be_trained(tmp_path):
    config = load(tmp_path)
    check_trainable(config)
    assert config.model == "org/model"
    assert config.data.train == str(tmp_path / "train.jsonl")
    assert config.trajectories_per_step == 128


def test_tools_are_names_or_names_with_options(tmp_path):
    config = load(tmp_path, "env.tools=[search, {name: 'a.py:T', options: {k: 3}}]")
    in_file = load(tmp_path, text=MINIMAL.replace("}\nenv: {", "}\nenv: {tools: [b.py:T], "))
    assert [tool.name for tool in in_file.env.tools] == [f"{tmp_path}/b.py:T"]
    assert [tool.name for tool in config.env.tools] == ["search", f"{Path.cwd()}/a.py:T"]
    assert [tool.options for tool in config.env.tools] == [{}, {"k": 3}]


def test_off_needs_no_quotes(tmp_path):
    learner = load(tmp_path, *(f"learner.{key}=off" for key in ("checkpointing", "offload", "fp8"))).learner
    assert {learner.checkpointing, learner.offload, learner.fp8} == {"off"}


def test_the_resolved_config_loads_as_the_same(tmp_path):
    import yaml

    config = load(tmp_path, "env.tools=[search]", "limits.max_turns=3")
    again = tmp_path / "again" / "config.yaml"
    again.parent.mkdir()
    again.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert load_config(RunConfig, again) == config


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("limits.max_turn=3", ["'limits.max_turn'", "'max_turns'"]),
        ("limits.max_turns=0", ["limits.max_turns must be above 0"]),
        ("learner.learning_rate=1", ["'learner.learning_rate'"]),
        ("run.seed=-1", ["run.seed is -1: input should be greater than or equal to 0."]),
        ("run.loggers=[tensorbord]", ["run.loggers.0", "'tensorbord'", "'tensorboard'"]),
        ("engine.name=vlm", ["engine.name", "'vlm'", "'vllm'"]),
        ("env.tools=[{nme: x}]", ["'env.tools.0.nme'", "'name'"]),
        ("data.train=[{source: a.jsonl, wieght: 2}]", ["no key 'data.train.0.wieght'. Did you mean 'weight'?"]),
        (
            "data.train=[{source: a.jsonl, weight: .inf}]",
            ["data.train.0.weight is inf: input should be a finite number."],
        ),
        ("data.train=[{source: a.jsonl, weight: -1}]", ["data.train.0.weight is -1: input should be greater than 0."]),
        ("data.train=[{source: a.jsonl, keep: [0.1]}]", ["data.train.0.keep has too few items: it needs 2 or more."]),
        ("data.train={source: a.jsonl}", ["data.train must be a list: "]),
        (
            "data.train=[{source: a.py:f}, b.jsonl]",
            ["data.train.1 is ", "must be a mapping with some of the keys keep"],
        ),
        ("data.train=[a.jsonl, 5]", ["data.train.1 is 5: "]),
        ("data.eval=5", ["data.eval is 5: "]),
        ("data.train={prompt: x}", ["names a dataset and does not contain rows"]),
        ("learner.betas=[0.9, 1]", ["learner.betas.1 is 1: input should be less than 1."]),
        ("learner.betas=[-0.1, 0.9]", ["learner.betas.0 is -0.1: input should be greater than or equal to 0."]),
        ("steps=5", ["'steps'. Did you mean 'run.steps' or 'profiler.steps'?"]),
        ("reward=exact", ["Did you mean 'env.reward'?"]),
        ("sampling.max_tokens=5", ["There is a key 'limits.max_tokens'. Known: stop_strings, "]),
        ("env.tools=null", ["env.tools=[] is the empty one"]),
        ("sampling.stop_strings=['END', '']", ["sampling.stop_strings.1 is '': ", "at least 1 character"]),
        ("learner.lora=true", ["learner.lora is True: it must be a mapping", "alpha, publish, rank, targets"]),
        ("learner.early_gradients=true", ["'learner.early_gradients' was removed: ", "Delete the key."]),
        ("learner.model=other", ["'learner.model' was removed: ", "set model"]),
        ("learner.temperature=0.5", ["'learner.temperature' was removed: ", "set sampling.temperature"]),
        ("learner.seed=1", ["'learner.seed' was removed: ", "set run.seed"]),
        ("learner.recording={folder: x, steps: [1]}", ["'learner.recording' was removed: ", "set profiler"]),
    ],
)
def test_wrong_keys_and_values_name_the_whole_path(tmp_path, override, words):
    with pytest.raises(UserError) as caught:
        load(tmp_path, override)
    for word in words:
        assert word in str(caught.value)


def test_a_missing_section_says_how_to_set_it(tmp_path):
    with pytest.raises(UserError, match=r"'env' is missing"):
        load(tmp_path, text="model: m\ndata: {train: t.jsonl}\n")
    with pytest.raises(
        UserError, match=r"The key 'model' is missing: set it in the config, or as an override \(model=\.\.\.\)\."
    ) as caught:
        load(tmp_path, text="data: {train: t.jsonl}\nenv: {reward: exact}\n")
    assert "learner" not in str(caught.value)


def test_an_error_in_data_names_one_member_of_the_union(tmp_path):
    for value in ("5", "[5]", "[{source: 5}]", "[{source: a.jsonl, limit: 0}]"):
        with pytest.raises(UserError) as caught:
            load(tmp_path, f"data.train={value}")
        assert str(caught.value).count("data.train") == 1
        assert "tuple" not in str(caught.value)


def test_keys_that_a_config_cannot_set_are_not_offered(tmp_path):
    with pytest.raises(UserError, match=r"Known: aggregation, .* mini_batches, nodes, "):
        load(tmp_path, "learner.nothing_alike=1")


def test_the_config_of_another_command_is_recognised(tmp_path):
    with pytest.raises(
        UserError, match=r"a config of `agentloop sft` or `agentloop dpo`, because it has a batch_size"
    ) as found:
        load(tmp_path, text="model: m\ndata: {train: t.jsonl, max_tokens: 5}\nbatch_size: 4\n")
    assert "To evaluate the model of its run, name the tasks: `agentloop rollout RECIPE model=RUN`." in str(found.value)
    with pytest.raises(UserError, match=r"'env' is missing.* `agentloop sft` and `agentloop dpo` have none"):
        load(tmp_path, text="model: m\ndata: {train: t.jsonl}\n")
    with pytest.raises(UserError, match=r"a config of `agentloop train`, because it has the section env") as caught:
        load_config(FineTuningConfig, tmp_path / "config.yaml", ["env.reward=exact", "limits.max_turns=3"])
    assert "limits" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm.group_size=1"], ["algorithm.group_size is 1", "grpo"]),
        (["algorithm.advantage=grop"], ["'grop'", "'grpo'"]),
        (["learner.loss=pp"], ["'pp'", "'ppo'"]),
        (["learner.loss_options={clip_lw: 1}"], ["clip_lw"]),
        (
            ["algorithm.group_size=1", "algorithm.advantage=remax", "algorithm.dynamic_sampling={}"],
            ["dynamic_sampling"],
        ),
        (["algorithm.advantage=gigpo", "algorithm.advantage_options={gama: 1}"], ["'gama'", "'gamma'"]),
        (["algorithm.kl_in_reward=0.1"], ["algorithm.kl_in_reward is 0.1", "learner.reference"]),
        (["learner.corrections=[{name: truncate, options: {cap: 0}}]"], ["corrections.options.cap", "truncate"]),
        (["learner.loss=value"], ["learner.loss is value", "gae"]),
        (["learner.loss=implicit_reward"], ["learner.loss is implicit_reward", "prime"]),
        (["learner.corrections=[icepop]", "learner.old_logprobs=rollout"], ["old_logprobs=rollout"]),
        (["sampling.temperature=0"], ["sampling.temperature is 0"]),
        (["limits.max_tokens=99999"], ["learner.token_budget", "limits.max_tokens is 99999"]),
        (["eval.every=5"], ["data.eval"]),
        (["learner.ranks=3", "learner.sequence_parallel=2"], ["sequence_parallel is 2", "3 ranks"]),
        (["learner.backend=megatron", "algorithm.advantage=gae"], ["has no critic", "advantage=gae"]),
        (["learner.nodes=2"], ["learner.nodes is 2", "1 ranks"]),
        (["learner.mini_batches=500"], ["learner.mini_batches is 500", "128"]),
        (
            ["learner.lr_schedule=linear", "run.steps=5", "learner.warmup_updates=5"],
            ["warmup_updates is 5", "has 5 updates"],
        ),
        (["staleness.cut.deadline=0.001"], ["staleness.cut.deadline is 0.001", "Set staleness.cut.min_episodes"]),
        (
            ["staleness.cut={deadline: 1, min_episodes: 4}", "algorithm.group_size=4"],
            ["staleness.cut.min_episodes is 4", "Set it below 4"],
        ),
        (["staleness.cut.min_episodes=2"], ["staleness.cut.min_episodes is 2", "Set staleness.cut.deadline"]),
        (["staleness.when_late=drop"], ["staleness.when_late would have no effect", "set another staleness.mode"]),
        (["staleness.window=99"], ["staleness.window would have no effect", "set another staleness.mode"]),
        (["critic={lr: 1e-3, clip: 1}"], ["critic.lr and critic.clip would", "advantage=grpo", "advantage=gae"]),
        (["process_reward.beta=1"], ["process_reward.beta would", "advantage=grpo", "advantage=prime"]),
        (["critic.lr=1e-3", "algorithm.advantage=prime"], ["critic.lr would have no effect", "advantage=prime"]),
        (
            ["algorithm.overlong={max_sampled_tokens: 1124, buffer: 100}", "limits.max_tokens=1024"],
            ["max_sampled_tokens is 1124", "limits.max_tokens is 1024", "no episode would be penalised"],
        ),
        (
            ["algorithm.overlong={max_sampled_tokens: 100000, buffer: 100}"],
            ["max_sampled_tokens is 100000", "learner.token_budget is 16384"],
        ),
        (
            ["limits.max_tokens=384", "engine.options.max_model_len=256"],
            ["limits.max_tokens is 384, but engine.options.max_model_len is 256", "Set limits.max_tokens=256"],
        ),
        (["engine.name=hf", "learner.lora.publish=adapters"], ["learner.lora.publish=merged", "engine.name=vllm"]),
        (["learner.lora.publish=adapters", "placement.sleep=true"], ["learner.lora.publish", "placement.sleep=false"]),
    ],
)
def test_impossible_settings_are_refused_before_anything_loads(tmp_path, overrides, words):
    config = load(tmp_path, *overrides)
    with pytest.raises(UserError) as caught:
        check_trainable(config)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["staleness.cut={deadline: 1, min_episodes: 2}"],
        ["staleness.cut.extra_episodes=2"],
        ["staleness={mode: stream, when_late: drop, window: 99}"],
        # With over-sampling a step starts more groups than it trains on.
        ["staleness={when_late: drop, window: 99}", "algorithm.dynamic_sampling.oversampling=1.5"],
        ["critic.lr=1e-3", "algorithm.advantage=gae"],
        ["engine.options.max_model_len=256"],
        ["limits.max_tokens=256", "engine.options.max_model_len=384"],
        ["process_reward.lr=1e-3", "algorithm.advantage=prime"],
        ["algorithm.overlong={max_sampled_tokens: 1123, buffer: 100}", "limits.max_tokens=1024"],
        # The penalty counts all token streams of an episode, and an agent may have several.
        ["algorithm.overlong={max_sampled_tokens: 4096, buffer: 100}", "limits.max_tokens=1024", "env.factory=agent"],
    ],
)
def test_settings_with_an_effect_are_accepted(tmp_path, overrides):
    check_trainable(load(tmp_path, *overrides))


def test_every_loss_that_an_error_offers_is_accepted(tmp_path):
    with pytest.raises(UserError) as caught:
        check_trainable(load(tmp_path, "learner.loss=no_such_loss"))
    offered = re.findall(r"\w+", str(caught.value).partition("Set learner.loss to one of: ")[2].partition(", or")[0])
    of_episodes = {name for name in losses.names() if losses.get(name).auxiliary_of is None} - {"dpo"}
    assert set(offered) == of_episodes
    for name in offered:
        check_trainable(load(tmp_path, f"learner.loss={name}"))
    for name in set(losses.names()) - set(offered):
        with pytest.raises(UserError, match=f"learner.loss is {name}, which (trains an auxiliary model|needs pairs)"):
            check_trainable(load(tmp_path, f"learner.loss={name}"))


@pytest.mark.parametrize("name", advantages.names())
def test_dynamic_sampling_needs_an_advantage_that_the_rewards_of_a_group_tell(tmp_path, name):
    config = load(tmp_path, f"algorithm.advantage={name}", "algorithm.dynamic_sampling={}")
    if judges_alone(config.algorithm):
        check_trainable(config)
    else:
        with pytest.raises(UserError, match=f"algorithm.dynamic_sampling drops groups .*algorithm.advantage={name}"):
            check_trainable(config)
    penalised = load(tmp_path, f"algorithm={{advantage: {name}, dynamic_sampling: {{}}, kl_in_reward: 0.1}}")
    with pytest.raises(UserError, match="and kl_in_reward the rewards of a group do not determine"):
        check_trainable(penalised)


_CUT = ["sampling.top_p=0.7", "sampling.top_k=20", "sampling={top_p: 0.9, top_k: 40}"]
_TRAINING = [name for name in ENGINES if ENGINES.get(name).read_turn is None]
_COMPARES = [name for name in losses.names() if losses.get(name).on_policy]


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("loss", _COMPARES)
@pytest.mark.parametrize("engine", _TRAINING)
def test_a_cut_distribution_is_not_trained_on_in_silence(tmp_path, mode, loss, engine):
    """Every loss that compares with the sampling policy, in every mode; and both ways out work."""
    usual = [f"staleness={{mode: {mode}, allow_uncorrected: true}}", f"learner.loss={loss}", f"engine.name={engine}"]
    cut = _CUT[len(mode + loss) % len(_CUT)]
    other = "learner.corrections=[truncate]" if engine != "sglang" else "learner.old_logprobs=learner"
    config = load(tmp_path, *usual, cut)
    with pytest.raises(UserError, match=r"sampling.top_[pk] is .*sampling.top_p=1 and sampling.top_k=0") as caught:
        check_trainable(config)
    assert other in str(caught.value)
    check_trainable(load(tmp_path, *usual, cut, other))
    check_trainable(load(tmp_path, *usual, "eval.top_p=0.7"))


def test_a_cut_distribution_needs_a_correction_by_the_whole_one(tmp_path):
    with pytest.raises(UserError, match=r"learner.corrections=\[truncate\]"):
        check_trainable(load(tmp_path, _CUT[0], "learner.corrections=[truncate]", "learner.old_logprobs=interpolated"))
    check_trainable(load(tmp_path, _CUT[0], "learner.loss=sft"))


def test_greedy_baselines_and_a_penalty_for_the_kl_need_temperature_1(tmp_path):
    settings = ["algorithm={advantage: remax, kl_in_reward: 0.1}", "learner.reference=m", "sampling.temperature=0.7"]
    with pytest.raises(UserError, match=r"sampling.temperature is 0.7: the greedy episodes of remax"):
        check_trainable(load(tmp_path, *settings))
    check_trainable(load(tmp_path, *settings, "sampling.temperature=1"))


def test_one_episode_a_task_is_enough_for_advantages_that_compare_none(tmp_path):
    check_trainable(load(tmp_path, "algorithm.group_size=1", "algorithm.advantage=reinforce_pp"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tensor_parallel": 2}, "backend is fsdp, but only megatron has tensor_parallel"),
        (
            {"backend": "megatron", "offload": "all", "gather_once": True},
            "backend is megatron, but only fsdp has offload, gather_once",
        ),
        (
            {"backend": "megatron", "context_parallel": 2, "share_prefixes": True},
            "context_parallel splits rows whose prompts are not shared",
        ),
    ],
)
def test_settings_of_another_backend_are_not_left_out_in_silence(options: dict, said: str):
    with pytest.raises(ValueError, match=said):
        LearnerConfig(model="m", **options)
