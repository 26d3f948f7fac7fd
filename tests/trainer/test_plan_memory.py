"""Estimates of memory against the peaks that were measured and kept in benchmarks/results."""

import json
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentloop.trainer.planning.flops import ModelFlops
from agentloop.trainer.planning.gpus import find
from agentloop.trainer.planning.layouts import Layout
from agentloop.trainer.planning.memory import Precision, training_memory
from agentloop.trainer.planning.model_shape import ModelShape
from agentloop.trainer.planning.step_time import Work, training_seconds

_ROOT = Path(__file__).parents[2]
_SHAPES = {"0.6B": (1024, 3072, 28, 16), "1.7B": (2048, 6144, 28, 16), "4B": (2560, 9728, 36, 32)}
_MEASURED = sorted((_ROOT / "benchmarks" / "results").glob("train_step_*B_*.json"))


def _config(name: str) -> Qwen3Config:
    hidden, mlp, layers, heads = _SHAPES[name]
    return Qwen3Config(
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
    )


def _layout(result: dict) -> Layout:
    options = result["options"]
    return Layout(token_budget=int(options["token_budget"]), checkpointing=options["checkpointing"])


def test_six_layouts_were_measured():
    assert len(_MEASURED) >= 6


@pytest.mark.parametrize("path", _MEASURED, ids=lambda path: path.stem)
def test_memory_is_within_a_tenth_of_the_measured_peak(path: Path):
    result = json.loads(path.read_text())["result"]
    estimate = training_memory(ModelShape.from_config(_config(result["model"])), _layout(result))
    assert estimate.total / 2**30 == pytest.approx(result["memory_peak_gib"], rel=0.1)


@pytest.mark.parametrize("path", _MEASURED, ids=lambda path: path.stem)
def test_time_is_within_a_fifth_of_the_measured_step(path: Path):
    result = json.loads(path.read_text())["result"]
    config = _config(result["model"])
    count = result["sequences"]
    work = Work(
        trajectories=count,
        mean_tokens=result["tokens"] / count,
        longest=result["longest"],
        trained=result["trained_tokens"] / result["tokens"],
    )
    shape, flops = ModelShape.from_config(config), ModelFlops.from_config(config)
    seconds = training_seconds(shape, flops, _layout(result), work, find("H200"), 8)
    assert seconds == pytest.approx(result["step_seconds"], rel=0.2)


_ON_TWO = json.loads((_ROOT / "benchmarks" / "results" / "megatron_step_0.6B_2.json").read_text())["result"]
_DEGREES = {"tp": "tensor", "pp": "pipeline", "cp": "context"}


def _on_two(name: str) -> Layout:
    backend, *parts = name.split(",")
    degrees = {_DEGREES[part[:2]]: int(part[2:]) for part in parts if part[:2] in _DEGREES}
    checkpointing = "full" if "full" in parts else "off"
    budget = int(_ON_TWO["options"]["token_budget"])
    return Layout(backend=backend, gpus=2, checkpointing=checkpointing, token_budget=budget, **degrees)  # type: ignore[arg-type]


@pytest.mark.parametrize("measured", _ON_TWO["layouts"], ids=lambda measured: measured["layout"])
def test_memory_of_layouts_over_two_gpus(measured: dict):
    layout = _on_two(measured["layout"])
    micro_batches = max(round(int(_ON_TWO["options"]["tokens"]) / layout.data / layout.token_budget), 1)
    shape = ModelShape.from_config(_config("0.6B"))
    estimate = training_memory(shape, layout, micro_batches=micro_batches, gather_once=True).total / 2**30
    # Where all activations are computed again little is left, and what is assumed of its working memory shows.
    tolerance = 1.5 if layout.checkpointing == "full" else 0.1 * measured["memory_peak_gib"]
    assert estimate == pytest.approx(measured["memory_peak_gib"], abs=tolerance)


def test_layouts_over_two_gpus_are_ranked_as_they_were_measured():
    config, options = _config("0.6B"), _ON_TWO["options"]
    shape, flops = ModelShape.from_config(config), ModelFlops.from_config(config)
    work = Work(trajectories=49, mean_tokens=int(options["tokens"]) / 49, longest=8192, trained=0.25)

    def estimated(measured: dict) -> float:
        return training_seconds(shape, flops, _on_two(measured["layout"]), work, find("H200"), 8)

    for one, other in combinations(_ON_TWO["layouts"], 2):
        # What is within a tenth of each other may change places.
        if abs(one["step_seconds"] / other["step_seconds"] - 1) > 0.1:
            is_faster = one["step_seconds"] < other["step_seconds"]
            assert (estimated(one) < estimated(other)) == is_faster, (one["layout"], other["layout"])


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_of_the_model(tied: bool):
    small = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": tied,
    }
    dense, experts = (
        Qwen3Config(**small),
        Qwen3MoeConfig(**small, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, decoder_sparse_step=1),
    )
    norms = 3 * 2 * 8  # of queries and keys: not counted
    assert ModelShape.from_config(dense).parameters + norms == Qwen3ForCausalLM(dense).num_parameters()
    assert ModelShape.from_config(experts).parameters + norms == Qwen3MoeForCausalLM(experts).num_parameters()


SHAPE = ModelShape.from_config(_config("4B"))


def test_each_saving_saves_where_it_says():
    plain = training_memory(SHAPE, Layout(gpus=8))
    selective = training_memory(SHAPE, Layout(gpus=8, checkpointing="selective"))
    full = training_memory(SHAPE, Layout(gpus=8, checkpointing="full"))
    assert plain.activations > 2 * selective.activations > 4 * full.activations
    offloaded = training_memory(SHAPE, Layout(gpus=8, offload="optimizer"))
    assert plain.total - offloaded.total == pytest.approx(plain.optimizer)
    away = training_memory(SHAPE, Layout(gpus=8, offload="all"))
    assert (away.weights, away.optimizer) == (0, 0)
    assert away.gradients < 0.3 * plain.gradients
    halved = training_memory(SHAPE, Layout(gpus=8, context=2))
    assert halved.activations == pytest.approx(plain.activations / 2)
    assert training_memory(SHAPE, Layout(gpus=1)).optimizer == pytest.approx(8 * plain.optimizer)


def test_megatron_divides_by_what_its_degrees_divide():
    one = training_memory(SHAPE, Layout(backend="megatron", gpus=8), micro_batches=8)
    tensor = training_memory(SHAPE, Layout(backend="megatron", gpus=8, tensor=2), micro_batches=8)
    staged = training_memory(SHAPE, Layout(backend="megatron", gpus=8, pipeline=2), micro_batches=8)
    assert tensor.gradients == pytest.approx(one.gradients / 2)
    assert tensor.activations == pytest.approx(one.activations / 2, rel=0.01)
    # The first stage has half the layers, and activations of two micro-batches in flight.
    assert staged.activations == pytest.approx(one.activations)
    assert one.gradients / 2 < staged.gradients < 0.6 * one.gradients
    # The optimizer is divided over all ranks in any case.
    assert tensor.optimizer == pytest.approx(one.optimizer)


def test_a_model_in_float32_has_no_copy_and_twice_the_activations():
    half, single = training_memory(SHAPE, Layout()), training_memory(SHAPE, Layout(), precision=Precision(compute=4))
    assert single.compute_weights == 0
    assert single.activations > 1.9 * half.activations
    names = [field.name for field in fields(half)]
    assert half.total == sum(getattr(half, name) for name in names)
    assert replace(half, reference=5.0).total == half.total + 5.0
