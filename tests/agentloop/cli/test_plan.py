import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agentloop.api.recipe import load_run_config
from agentloop.cli import main
from agentloop.config.run import RunConfig
from agentloop.trainer.run.model_folder import find_model
from agentloop.trainer.sizing.layouts import Layout
from agentloop.trainer.sizing.place import place

_TINY = "tiny"


def _plan(*arguments: object) -> int:
    try:
        main(["plan", *map(str, arguments)])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _words(shown: str) -> list[str]:
    """Return the recipe and the overrides of the printed command."""
    [line] = [line for line in shown.splitlines() if line.startswith("  agentloop train")]
    _, _, *words = shlex.split(line)
    return words


def _best(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], RunConfig, list[str]]:
    """Return the best estimate, the config that the printed command loads, and its overrides."""
    capsys.readouterr()
    assert _plan(*arguments, "--json") == 0
    best = json.loads(capsys.readouterr().out)["fitting"][0]
    assert _plan(*arguments) == 0
    recipe, *overrides = _words(capsys.readouterr().out)
    return best, load_run_config(recipe, overrides), overrides


def test_plan_shows_the_recipes_layout_the_best_ones_and_why_others_do_not_fit(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    assert _plan(_TINY, "--gpus", 4, "--gpu", "L40S", "learner.token_budget=384") == 0
    shown = capsys.readouterr().out
    assert "4 x L40S" in shown
    assert "The layout of the recipe (fsdp DP4): it fits, about " in shown
    assert "Best (fsdp DP4)" in shown
    assert "does not divide" in shown


def test_episodes_are_not_longer_on_average_than_the_longest(capsys):
    assert _plan(_TINY, "--mean-tokens", 385) == 2
    assert "cannot have 385 tokens on average, because the longest has 384" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--gpus", 4], ["--gpus", 16, "--engine-gpus", 8], ["--gpus", 1]])
def test_the_printed_command_trains_with_the_best_layout(capsys, arguments):
    assert _plan(_TINY, *arguments, "learner.token_budget=384", "--backend", "fsdp") == 0
    words = _words(capsys.readouterr().out)
    assert f"placement.n_gpus={arguments[1]}" in words
    with pytest.raises(SystemExit) as ended:
        main(["train", *words, "--dry-run", "placement.gpu=H200"])
    shown = capsys.readouterr()
    assert ended.value.code == 0, shown.err
    assert f"{arguments[1]} GPUs" in " ".join(shown.out.split()), shown.out[-1500:]


@pytest.mark.parametrize(
    "arguments",
    [
        ["learner.checkpointing=full", "learner.offload=all", "--gpus", 4, "--gpu", "H100", "--backend", "fsdp"],
        ["placement={n_gpus: 2, layout: separate, learner_gpus: 1}", "--gpus", 4],
        ["placement.n_gpus=2", "placement.sleep=true", "--gpus", 4, "--engine-gpus", 2],
        ["learner={shard: node, sequence_parallel: 2, offload: optimizer}", "--gpus", 16],
        ["learner={backend: megatron, tensor_parallel: 2, pipeline_parallel: 2}", "--gpus", 2, "--backend", "fsdp"],
        ["engine={name: vllm, options: {tensor_parallel_size: 2, pipeline_parallel_size: 2}}", "--gpus", 1],
        ["model=Qwen/Qwen3-8B", "limits.max_tokens=32768", "learner.compute_dtype=bfloat16", "--backend", "megatron"],
    ],
)
def test_the_printed_command_has_exactly_the_best_layout(capsys, arguments):
    best, config, overrides = _best(capsys, _TINY, *arguments)
    assert asdict(Layout.of(config.learner, best["layout"]["gpus"])) == best["layout"]
    assert config.engine.options.get("tensor_parallel_size", 1) == best["engine_tensor"]
    assert config.engine.options.get("pipeline_parallel_size", 1) == 1
    assert config.placement.n_gpus == (arguments[arguments.index("--gpus") + 1] if "--gpus" in arguments else 8)
    assert config.placement.sleep == best["sharing"]["sleeps"]
    keys = [override.partition("=")[0] for override in overrides]
    assert len(keys) == len(set(keys)), keys


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gpus", 12, "--gpus-per-node", 5],
        ["--gpus", 12, "--engine-gpus", 6],
        ["--gpus", 16, "--engine-gpus", 11],
        ["--gpus", 32, "--engine-gpus", 24],
        ["--gpus", 9, "--engine-gpus", 3, "--gpus-per-node", 3],
        ["--gpus", 3, "learner.ranks=2", "workers={kind: ray, count: 2}"],
    ],
)
def test_the_printed_command_can_be_placed_on_the_nodes(capsys, arguments):
    _, config, _ = _best(capsys, _TINY, *arguments, "placement.gpu=H200")
    resolved, placed = place(config, find_model(config).hf_config)
    assert placed is not None
    assert (placed.placement.n_gpus, placed.placement.learner_gpus) == (config.placement.n_gpus, resolved.learner.ranks)


def test_an_engine_that_uses_one_gpu_is_not_spread_over_several(capsys):
    arguments = [_TINY, "model=Qwen/Qwen3-4B", "--gpus", 4, "--backend", "fsdp", "--json"]
    spread = {}
    for engine in ("hf", "vllm"):
        assert _plan(*arguments, f"engine.name={engine}") == 0
        spread[engine] = {each["engine_tensor"] for each in json.loads(capsys.readouterr().out)["fitting"]}
    assert spread["hf"] == {1}
    assert max(spread["vllm"]) > 1


def test_shared_prompts_leave_out_layouts_that_cannot_share_them(capsys):
    arguments = [_TINY, "model=Qwen/Qwen3-8B", "--gpus", 8, "--backend", "megatron", "--json"]
    contexts = {}
    for shares in ("null", "true"):
        assert _plan(*arguments, f"learner.share_prefixes={shares}") == 0
        found = json.loads(capsys.readouterr().out)
        contexts[shares] = {each["layout"]["context"] for each in found["fitting"]}
    assert max(contexts["null"]) > 1
    assert contexts["true"] == {1}
    assert "learner.share_prefixes is true, which context_parallel does not support." in found["obstacles"]


def test_plan_counts_the_weights_of_an_engine_in_fp8(capsys):
    arguments = ["model=Qwen/Qwen3-8B", "--gpus", 4, "--backend", "fsdp"]
    assert _plan(_TINY, *arguments) == 0
    assert "\n  engine weights 15.3 GiB\n" in capsys.readouterr().out
    assert _plan(_TINY, *arguments, "engine={name: vllm, options: {quantization: fp8}}") == 0
    assert "\n  engine weights 8.8 GiB in FP8\n" in capsys.readouterr().out


def test_plan_tells_why_it_shows_no_layouts_of_megatron(capsys):
    assert _plan(_TINY, "--gpus", 1, "learner.param_dtype=bfloat16") == 0
    shown = capsys.readouterr().out
    assert "Without layouts of megatron: learner.backend=megatron does not support param_dtype=bfloat16" in shown
    assert "megatron DP" not in shown


def test_the_table_is_as_wide_as_its_numbers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    arguments = ["model=Qwen/Qwen3-32B", "limits.max_tokens=32768", "algorithm.groups_per_step=65536"]
    assert _plan(_TINY, *arguments, "learner.compute_dtype=bfloat16", "--gpus", 64, "--top", 100) == 0
    shown = capsys.readouterr().out
    assert "megatron DP" in shown
    assert "…" not in shown


def test_no_layout_that_fits_is_a_failure(capsys):
    arguments = [_TINY, "model=Qwen/Qwen3-32B", "--gpus", 1, "--gpu", "L40S"]
    assert _plan(*arguments) == 1
    assert "No layout fits." in capsys.readouterr().out
    assert _plan(*arguments, "--json") == 1
    assert json.loads(capsys.readouterr().out)["fitting"] == []


def test_plan_as_json_has_every_layout_with_its_settings(capsys):
    assert _plan(_TINY, "--gpus", 2, "--json", "--backend", "fsdp") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fitting"]
    for estimate in found["fitting"]:
        assert estimate["layout"]["backend"] == "fsdp"
        assert estimate["settings"]["placement.n_gpus"] == 2
        assert estimate["training"]["total"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "H20000"], "Did you mean 'H200'"),
        (["--gpu", "H200:0"], "Unknown GPU 'H200:0'"),
        (["--mean-tokens", -5], "Invalid value for '--mean-tokens'"),
        (["--gpus", 2, "--engine-gpus", 2], "leaves none of 2 GPUs to train on"),
        (["--gpus", 20], "needs 3 nodes, and all nodes need the same number of GPUs. Set --gpus to a multiple of 3"),
        (["--gpus", 64, "--engine-gpus", 20], "leaves the learner 44 of 64 GPUs, but a learner on several nodes needs"),
        (["--gpus", 12, "--gpus-per-node", 5, "--engine-gpus", 2], "Set --engine-gpus so that the learner has 4 GPUs"),
        (["--backend", "megatron", "learner.lora={rank: 8}"], "megatron does not support lora"),
        (["--backend", "megatron", "algorithm.advantage=gae"], "megatron has no critic"),
        (["learner.backend=megatron", "learner.param_dtype=bfloat16"], "only fsdp has param_dtype=bfloat16"),
        (["engine.options.tensor_parallel_size=abc"], "tensor_parallel_size is 'abc', but it is a number of GPUs"),
        (["engine.options.pipeline_parallel_size=0"], "pipeline_parallel_size is 0, but it is a number of GPUs"),
        (["model=./nowhere"], "There is no model folder"),
    ],
)
def test_invalid_arguments_are_explained(capsys, arguments, message):
    assert _plan(_TINY, *arguments) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "a bert, is not a causal language model"),
        ({"model_type": "t5"}, "a t5, is not a causal language model"),
        ({"model_type": "vit"}, "a vit, is not a causal language model"),
        ({"model_type": "qwen3", "num_hidden_layers": 0}, "has num_hidden_layers=0: a model needs a layer"),
    ],
)
def test_models_that_do_not_sample_are_refused(capsys, tmp_path: Path, config, message):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert _plan(_TINY, f"model={tmp_path}") == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_an_impossible_layout_of_the_recipe_is_reported(capsys, tmp_path: Path):
    assert _plan(_TINY, "--gpus", 3, "learner.backend=megatron", "learner.tensor_parallel=2") == 0
    assert "impossible: " in capsys.readouterr().out


def test_an_engine_that_fits_on_no_node_is_reported(capsys):
    assert _plan(_TINY, "--gpus", 2, "engine.options.tensor_parallel_size=16") == 0
    shown = capsys.readouterr().out
    assert "The layout of the recipe is impossible: An engine needs tensor_parallel_size 16" in shown
    assert "The layout of the recipe (" not in shown


def test_plan_reports_when_engine_and_learner_take_turns(capsys):
    fits, sleeps = "it fits, about", "take turns: a sleeping engine keeps 2.0 GiB"
    for memory, override, takes_turns in (("6", "", False), ("4.7", "", True), ("6", "placement.sleep=true", True)):
        _plan(_TINY, "--gpus", 1, "--gpu", f"RTX-4090:{memory}", "--backend", "fsdp", *filter(None, [override]))
        shown = capsys.readouterr().out
        assert fits in shown
        assert (sleeps in shown) == takes_turns
    _plan(_TINY, "--gpus", 1, "--gpu", "RTX-4090:4.7", "--backend", "fsdp", "placement.sleep=false")
    assert "The engine next to the learner has no room" in capsys.readouterr().out
