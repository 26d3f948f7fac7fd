"""Placements of a model of 8B's shape, from numbers alone: nothing is loaded and no GPU is needed."""

import pytest
import torch
import yaml
from transformers import AutoConfig, GemmaConfig, Qwen3Config

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.sizing import gpus
from agentloop.trainer.sizing.derive import candidates, derive
from agentloop.trainer.sizing.place import check_devices, lines, place, planned, with_placement

H200 = gpus.find("H200")
SHAPE = Qwen3Config(
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=False,
)


@pytest.fixture
def config(sums):
    def make(*overrides):
        usual = ["learner.compute_dtype=bfloat16", "learner.checkpointing=full", "limits.max_tokens=8192"]
        usual += ["learner.token_budget=8192", "engine={name: vllm}"]
        return load_config(RunConfig, sums / "config.yaml", [*usual, *overrides])

    return make


def derived(config):
    return derive(config, planned(config, SHAPE), H200).placement


@pytest.mark.parametrize(
    ("overrides", "models"),
    [
        ([], (False, 0, 0)),
        (["learner.kl_coef=0.1"], (True, 0, 0)),
        (["learner.kl_coef=0.1", "learner.lora={rank: 8}"], (False, 0, 0)),
        (["learner.reference=./other", "learner.lora={rank: 8}"], (True, 0, 0)),
        (["algorithm.advantage=gae"], (False, 1, 0)),
        (["algorithm.advantage=prime"], (False, 1, 1)),
        (["algorithm.advantage=prime", "learner.lora={rank: 8}"], (False, 1, 0)),
    ],
)
def test_every_loaded_model_is_counted(config, overrides, models):
    run = planned(config(*overrides), SHAPE)
    assert (run.reference, run.auxiliary_models, run.auxiliary_references) == models


@pytest.mark.parametrize(
    ("overrides", "model", "reason"),
    [
        ([], SHAPE, ""),
        (["learner.offload=all", "learner.sequence_parallel=2"], SHAPE, ""),  # each layout has its own
        (["learner.backend=megatron", "learner.tensor_parallel=2"], SHAPE, ""),
        (["algorithm.advantage=gae"], SHAPE, "has no critic, which algorithm.advantage=gae needs"),
        (["learner.lora={rank: 8}"], SHAPE, "does not support lora"),
        (["learner.fp8=row"], SHAPE, "does not support fp8"),
        (["learner.param_dtype=bfloat16"], SHAPE, "does not support param_dtype=bfloat16"),
        ([], GemmaConfig(), "not gemma"),
    ],
)
def test_runs_that_megatron_cannot_train_say_why(config, overrides, model, reason):
    found = planned(config(*overrides), model).fsdp_only
    assert reason in found if reason else not found


def test_a_model_that_megatron_cannot_train_is_not_placed(config):
    settings = config("learner.backend=megatron", "placement.n_gpus=8", "placement.gpu=H200")
    with pytest.raises(UserError, match=r"trains llama, .*, not gemma"):
        place(settings, GemmaConfig())


@pytest.mark.parametrize(
    ("overrides", "is_fp8"), [([], False), (["engine.options.quantization=fp8"], True), (["learner.fp8=row"], False)]
)
def test_engines_in_fp8_are_those_with_this_option(config, overrides, is_fp8):
    assert planned(config(*overrides), SHAPE).engine_fp8 is is_fp8


def test_separate_gpus_are_split_between_learner_and_engines(config):
    placement = derived(
        config("placement={n_gpus: 8, layout: separate, learner_gpus: 4}", "engine.options={tensor_parallel_size: 2}")
    )
    assert (placement.learner_gpus, placement.data_parallel) == (4, 4)
    assert (placement.num_engines, placement.engine_size, placement.idle_gpus) == (2, 2, 0)
    assert placement.shared_engines == 0


def test_each_engine_stays_on_one_node(config):
    placement = derived(
        config(
            "placement={n_gpus: 16, nnodes: 2, layout: separate, learner_gpus: 5}",
            "engine.options={tensor_parallel_size: 2}",
        )
    )
    assert placement.engines_of_nodes == [1, 4]
    assert placement.idle_gpus == 1


def test_mixed_placement_uses_all_gpus_and_shares_some_with_the_learner(config):
    placement = derived(
        config("placement={n_gpus: 8, layout: mixed, learner_gpus: 4}", "engine.options={tensor_parallel_size: 2}")
    )
    assert (placement.num_engines, placement.shared_engines, placement.idle_gpus) == (4, 2, 0)


def test_multi_node_learner_uses_all_gpus_of_its_nodes(config):
    separate = config("placement={n_gpus: 32, nnodes: 4, layout: separate, learner_gpus: 16}")
    placement = derived(separate)
    assert (placement.learner_nodes, placement.engines_of_nodes) == (2, [0, 0, 8, 8])
    placed = derive(separate, planned(separate, SHAPE), H200)
    result = with_placement(separate, placed, H200)
    assert (result.learner.ranks, result.learner.nodes) == (16, 2)
    assert "16 GPUs of the first 2 nodes" in " ".join(lines(placed).values())
    shared = derived(config("placement={n_gpus: 16, nnodes: 2, layout: colocated}"))
    assert (shared.learner_gpus, shared.learner_nodes, shared.shared_engines) == (16, 2, 16)
    mixed = derived(config("placement={n_gpus: 32, nnodes: 4, layout: mixed, learner_gpus: 16}"))
    assert (mixed.num_engines, mixed.shared_engines) == (32, 16)


def test_replicas_on_each_node_need_more_memory_and_less_network(config):
    usual = ["placement={n_gpus: 16, nnodes: 2, layout: colocated}", "engine.options={tensor_parallel_size: 8}"]
    all_ranks, by_node = (
        derive(settings, planned(settings, SHAPE), H200)
        for settings in (config(*usual), config(*usual, "learner.shard=node"))
    )
    assert by_node.training_seconds < all_ranks.training_seconds
    assert by_node.engine_memory < all_ranks.engine_memory


def test_auto_selects_the_placement_with_the_shortest_steps(config):
    settings = config("placement={n_gpus: 8}")
    run = planned(settings, SHAPE)
    best = derive(settings, run, H200)
    for layout in ("colocated", "separate", "mixed"):
        one = config(f"placement={{n_gpus: 8, layout: {layout}}}")
        assert best.step_seconds <= derive(one, run, H200).step_seconds
    assert {each.layout for each in candidates(settings, run)} == {"colocated", "separate", "mixed"}


def test_no_candidate_oversubscribes_a_gpu(config):
    settings = config("placement={n_gpus: 16, nnodes: 2}", "engine.options={tensor_parallel_size: 2}")
    for placement in candidates(settings, planned(settings, SHAPE)):
        if list(placement.problems()):
            continue
        used = placement.num_engines * placement.engine_size
        used += placement.learner_gpus if placement.layout == "separate" else 0
        assert used + placement.idle_gpus == 16
        assert placement.idle_gpus >= 0
        assert placement.learner_gpus <= placement.gpus_per_node or placement.learner_gpus % 8 == 0
        assert sum(placement.learner_gpus_of_nodes) == placement.learner_gpus


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["placement={n_gpus: 9, nnodes: 2}"], "n_gpus is 9 and placement.nnodes 2.*multiple of 2"),
        (
            [
                "placement={n_gpus: 8, layout: separate, learner_gpus: 3}",
                "learner={backend: megatron, tensor_parallel: 2}",
            ],
            r"learner's 3 GPUs are not a multiple of tensor_parallel \* pipeline_parallel \* context_parallel = 2: "
            r"data parallelism would be 1.50",
        ),
        (
            ["placement={n_gpus: 8, layout: separate, learner_gpus: 8}"],
            "learner's 8 of 8 GPUs leave no node with the 1 GPUs of one engine",
        ),
        (
            ["placement={n_gpus: 16, nnodes: 4}", "engine.options={tensor_parallel_size: 8}"],
            "tensor_parallel_size 8 .* = 8 GPUs on one node, but a node has 4",
        ),
        (
            ["placement={n_gpus: 16, nnodes: 2, layout: separate, learner_gpus: 12}"],
            "learner would have 12 GPUs, but a node has 8: .* to 8 or less, or to a multiple of 8",
        ),
        (["placement={n_gpus: 8, layout: mixed, learner_gpus: 9}"], "learner would have 9 GPUs, but the run has 8"),
        (
            ["placement={n_gpus: 8, layout: colocated}", "engine.options={tensor_parallel_size: 3}"],
            "tensor_parallel_size=3 of engine.options does not divide the model's 32 attention heads",
        ),
        (
            ["placement={n_gpus: 2, layout: separate, learner_gpus: 1}"],
            r"separate with 1 learner GPUs: The learner needs",
        ),
    ],
)
def test_impossible_placement_raises_with_the_numbers_and_a_fix(config, overrides, message):
    settings = config(*overrides)
    with pytest.raises(UserError, match=message):
        derive(settings, planned(settings, SHAPE), H200)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_worker_learner_and_engine_settings_are_derived(config, engine):
    settings = config(
        "placement={n_gpus: 8, layout: mixed, learner_gpus: 4}",
        f"engine={{name: {engine}, options: {{tensor_parallel_size: 2}}}}",
    )
    placed = derive(settings, planned(settings, SHAPE), H200)
    result = with_placement(settings, placed, H200)
    assert (result.workers.kind, result.workers.count, result.workers.gpus) == ("ray", 4, 2)
    assert result.learner.ranks == 4
    assert 0.3 < result.engine.options["gpu_memory_utilization"] < 0.9, "what the learner leaves"
    words = " ".join(lines(placed).values())
    assert "mixed: 8 GPUs on 1 nodes, 0 of them unused" in words
    assert "4 GPUs of the first node: data 4 * model 1" in words


@pytest.mark.parametrize(
    ("placement", "options"),
    [
        ("{n_gpus: 8}", "{}"),
        ("{n_gpus: 8, layout: separate}", "{tensor_parallel_size: 2}"),
        ("{n_gpus: 8, layout: mixed, learner_gpus: 4}", "{tensor_parallel_size: 2}"),
        ("{n_gpus: 2, layout: colocated}", "{}"),
        ("{n_gpus: 16, nnodes: 2}", "{}"),
    ],
)
def test_a_placed_config_that_was_written_is_placed_as_before(config, placement, options, tmp_path):
    settings = config(f"placement={placement}", "placement.gpu=H200", f"engine.options={options}")
    result, placed = place(settings, SHAPE)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(result.model_dump(mode="json")))
    assert place(load_config(RunConfig, file), SHAPE) == (result, placed)


def test_conflicting_setting_is_named(config):
    settings = config(
        "placement={n_gpus: 8, layout: separate, learner_gpus: 4}", "workers={kind: ray, count: 7}", "learner.ranks=2"
    )
    placed = derive(settings, planned(settings, SHAPE), H200)
    with pytest.raises(UserError, match=r"workers\.count is 7, .* requires 4.*learner\.ranks is 2, .* requires 4"):
        with_placement(settings, placed, H200)


def test_config_is_unchanged_without_a_gpu_count(config, sums_model):
    settings = config()
    assert place(settings, None) == (settings, None)
    check_devices(settings)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ("{nnodes: 2, learner_gpus: 4}", "nnodes and learner_gpus divide n_gpus"),
        ("{n_gpus: 8, layout: colocated, learner_gpus: 4}", "learner_gpus is 4 and layout colocated.*all 8 GPUs"),
    ],
)
def test_settings_without_effect_are_rejected(config, placement, message):
    with pytest.raises(UserError, match=message):
        config(f"placement={placement}")


def test_more_gpus_than_the_node_has_raise(config, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    check_devices(config("placement.n_gpus=4"))
    check_devices(config("placement={n_gpus: 8, nnodes: 2}"))
    with pytest.raises(UserError, match=r"n_gpus is 8 on 1 nodes, 8 on each, but this node has 4 GPUs.*n_gpus=4"):
        check_devices(config("placement.n_gpus=8"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match=r"has 0 GPUs.*omit `placement`"):
        check_devices(config("placement.n_gpus=8"))


def test_machine_without_gpus_can_request_remote_gpus(config, sums_model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match=r"this machine has no GPU.*placement.gpu=H200, with --dry-run"):
        place(config("placement.n_gpus=8"), AutoConfig.from_pretrained(sums_model))
    result, placed = place(config("placement={n_gpus: 8, gpu: H200}"), AutoConfig.from_pretrained(sums_model))
    assert placed is not None
    assert result.workers.count == placed.placement.num_engines


def test_engines_sleep_if_both_do_not_fit_and_get_nearly_the_whole_gpu(config):
    def on_two(*overrides, sleep="auto"):
        return config(f"placement={{n_gpus: 2, layout: colocated, sleep: {sleep}}}", *overrides)

    fits, tight = on_two(), on_two('learner.checkpointing="off"')
    assert not derive(fits, planned(fits, SHAPE), H200).sleeps
    placed = derive(tight, planned(tight, SHAPE), H200)
    assert placed.sleeps
    result = with_placement(tight, placed, H200)
    assert result.placement.sleep is True
    assert result.engine.options["gpu_memory_utilization"] > 0.8
    assert "engines sleep while the learner trains" in lines(placed)["turns"]
    assert with_placement(fits, derive(fits, planned(fits, SHAPE), H200), H200).placement.sleep is False
    asked = on_two(sleep="true")
    assert derive(asked, planned(asked, SHAPE), H200).sleeps
    refused = on_two('learner.checkpointing="off"', sleep="false")
    partial = on_two('learner.checkpointing="off"', "staleness={mode: partial, allow_uncorrected: true}")
    for settings in (refused, partial):
        with pytest.raises(UserError, match=r"cannot be placed on 2 GPUs.*engine next to the learner has no room"):
            derive(settings, planned(settings, SHAPE), H200)


@pytest.mark.parametrize("name", ["tensor_parallel_size", "pipeline_parallel_size"])
@pytest.mark.parametrize("value", ["abc", "0", "-1", "1.5", "true", "null"])
def test_a_degree_of_an_engine_is_a_number_of_gpus(config, name, value):
    settings = config("placement.n_gpus=2", "placement.gpu=H200", f"engine.options.{name}={value}")
    with pytest.raises(UserError, match=rf"engine\.options\.{name} is .*, but it is a number of GPUs"):
        place(settings, SHAPE)
