"""Estimates of memory and time against the measurements in benchmarks/results."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2_5_VLConfig, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentloop.trainer.planning.flops import ModelFlops
from agentloop.trainer.sizing.gpus import find
from agentloop.trainer.sizing.layouts import Layout, problems
from agentloop.trainer.sizing.memory import Precision, training_memory
from agentloop.trainer.sizing.model_shape import ModelShape
from agentloop.trainer.sizing.shapes import shape_of
from agentloop.trainer.sizing.step_time import Work, training_seconds

_ROOT = Path(__file__).parents[3]
_SHAPES = {"0.6B": (1024, 3072, 28, 16), "1.7B": (2048, 6144, 28, 16), "4B": (2560, 9728, 36, 32)}
_RESULTS = _ROOT / "benchmarks" / "results"
_DEGREES = {"tp": "tensor", "pp": "pipeline", "cp": "context"}


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


@dataclass(frozen=True)
class Measured:
    """Return a result line of the training benchmarks."""

    result: dict[str, Any]
    line: dict[str, Any]
    gpus: int

    @property
    def shape(self) -> ModelShape:
        return ModelShape.from_config(_config(self.result["model"]))

    @property
    def gathers_once(self) -> bool:
        return "gather_once=false" not in self.line.get("layout", "")

    @property
    def settings(self) -> dict[str, str]:
        return dict(part.split("=") for part in self.line.get("layout", "").split(",") if "=" in part)

    @property
    def lora_rank(self) -> int:
        return int(self.settings.get("lora.rank", 0))

    def layout(self, token_budget: int) -> Layout:
        backend, *parts = self.line.get("layout", "fsdp").split(",")
        options: dict[str, Any] = {_DEGREES[part[:2]]: int(part[2:]) for part in parts if part[:2] in _DEGREES}
        options |= {name: value for name, value in self.settings.items() if name == "checkpointing"}
        checkpointing = self.result["options"].get("checkpointing", "off")
        options = {"checkpointing": checkpointing} | options
        return Layout(backend=backend, gpus=self.gpus, token_budget=token_budget, **options)  # type: ignore[arg-type]

    @property
    def estimated_gib(self) -> float:
        layout = self.layout(self.line["largest_row"])
        once = self.gathers_once
        memory = training_memory(self.shape, layout, micro_batches=4, gather_once=once, lora_rank=self.lora_rank)
        return memory.total / 2**30

    @property
    def work(self) -> Work:
        count = self.result["sequences"]
        return Work(
            trajectories=count,
            mean_tokens=self.result["tokens"] / count,
            longest=self.result["longest"],
            trained=self.result["trained_tokens"] / self.result["tokens"],
        )

    @property
    def estimated_seconds(self) -> float:
        layout = self.layout(int(self.result["options"]["token_budget"]))
        flops = ModelFlops.from_config(_config(self.result["model"]))
        fp8 = "fp8" in self.settings
        return training_seconds(
            self.shape, flops, layout, self.work, find("H200"), 8, lora_rank=self.lora_rank, fp8=fp8
        )


def _measured() -> Iterator[Any]:
    for path in sorted(_RESULTS.glob("train_s*_*B*.json")):
        result = json.loads(path.read_text())["result"]
        for line in result.get("layouts", result.get("runs")):
            found = Measured(result, line, line.get("ranks", result.get("gpus")))
            yield pytest.param(found, id=f"{path.stem}-{line.get('layout', found.gpus)}")


_MEASURED = list(_measured())
_PEAKS = [case for case in _MEASURED if "memory_peak_gib" in case.values[0].line]
_ON_TWO = [case.values[0] for case in _MEASURED if case.id.startswith("train_step_0.6B_25_2gpus-")]


def test_enough_measurements_are_recorded():
    layouts = {(case.values[0].line.get("layout", "fsdp"), case.values[0].gpus) for case in _PEAKS}
    assert len(layouts) >= 10
    assert len(_ON_TWO) >= 6


@pytest.mark.parametrize("measured", _PEAKS)
def test_memory_estimate_is_within_ten_percent_of_the_measured_peak(measured: Measured):
    assert measured.estimated_gib == pytest.approx(measured.line["memory_peak_gib"], rel=0.1)


def test_memory_estimate_of_the_longest_row_that_fits():
    result = json.loads((_RESULTS / "longest_row_4B_agentloop_full_sparse.json").read_text())["result"]
    rows = [row for row in result["rows"] if row.get("fits")]
    assert {row["mode"] for row in rows} == {"full", "sparse"}
    for row in rows:
        layout = Layout(checkpointing=row["mode"], token_budget=row["tokens"])
        estimate = training_memory(ModelShape.from_config(_config("4B")), layout, micro_batches=1)
        assert estimate.total / 2**30 == pytest.approx(row["memory_peak_gib"], rel=0.05)


_FAST = [case for case in _MEASURED if case.values[0].gpus == 1 and "step_seconds" in case.values[0].line]


@pytest.mark.parametrize("measured", _FAST)
def test_time_estimate_is_within_twenty_percent_of_the_measured_step(measured: Measured):
    assert measured.estimated_seconds == pytest.approx(measured.line["step_seconds"], rel=0.2)


def test_layouts_over_two_gpus_are_ranked_as_measured():
    for one, other in combinations([measured for measured in _ON_TWO if measured.gathers_once], 2):
        # Layouts within a tenth of each other may change places.
        seconds = one.line["step_seconds"], other.line["step_seconds"]
        if abs(seconds[0] / seconds[1] - 1) > 0.1:
            is_faster = seconds[0] < seconds[1]
            layouts = one.line["layout"], other.line["layout"]
            assert (one.estimated_seconds < other.estimated_seconds) == is_faster, layouts


@pytest.mark.parametrize("tied", [True, False])
def test_parameter_counts_match_the_model(tied: bool):
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
    assert ModelShape.from_config(dense).parameters == Qwen3ForCausalLM(dense).num_parameters()
    assert ModelShape.from_config(experts).parameters == Qwen3MoeForCausalLM(experts).num_parameters()


def test_an_engine_in_fp8_keeps_vocabulary_norms_and_routers_in_two_bytes():
    dense = ModelShape.from_config(shape_of("Qwen/Qwen3-8B"))
    assert dense.engine_bytes(fp8=False) == 2 * 8_190_735_360
    # 36 layers of 4096 x (4096 + 1024 + 1024 + 4096 + 3 x 12288) weights, and 38,912 rows.
    assert dense.engine_bytes(fp8=True) == 2 * 8_190_735_360 - 6_945_767_424 + 4 * 36 * 38_912
    sparse = ModelShape.from_config(shape_of("Qwen/Qwen3-30B-A3B"))
    # 48 layers of 2048 x (4096 + 512 + 512 + 4096) weights with 7,168 rows, and of 128 experts of 3 x 2048 x 768
    # weights with 768 + 768 + 2048 rows.
    attention, experts = 905_969_664 - 4 * 48 * 7_168, 28_991_029_248 - 4 * 48 * 128 * 3_584
    assert sparse.engine_bytes(fp8=False) == 2 * 30_532_122_624
    assert sparse.engine_bytes(fp8=True) == 2 * 30_532_122_624 - attention - experts
    no_experts = 2 * (30_532_122_624 - 28_991_029_248)
    assert sparse.engine_bytes(fp8=False, experts=0.0) == no_experts
    assert sparse.engine_bytes(fp8=True, experts=0.0) == no_experts - attention


def test_shape_of_a_vision_model():
    shape = ModelShape.from_config(Qwen2_5_VLConfig(tie_word_embeddings=False))
    assert (shape.tied, shape.has_tower) == (False, True)
    assert list(problems(Layout(gpus=2), shape)) == []
    for refused in (Layout(gpus=2, context=2), Layout(gpus=2, backend="megatron")):
        assert list(problems(refused, shape)) == [
            "A model with a vision tower needs backend=fsdp without sequence_parallel."
        ]


SHAPE = ModelShape.from_config(_config("4B"))


def test_each_memory_setting_reduces_the_estimate():
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


def test_megatron_parallel_degrees_divide_memory():
    one = training_memory(SHAPE, Layout(backend="megatron", gpus=8), micro_batches=8)
    tensor = training_memory(SHAPE, Layout(backend="megatron", gpus=8, tensor=2), micro_batches=8)
    staged = training_memory(SHAPE, Layout(backend="megatron", gpus=8, pipeline=2), micro_batches=8)
    assert tensor.gradients == pytest.approx(one.gradients / 2)
    assert tensor.activations == pytest.approx(one.activations / 2, rel=0.01)
    # The first stage has half the layers, with two micro-batches in flight.
    assert staged.activations == pytest.approx(one.activations)
    assert one.gradients / 2 < staged.gradients < 0.6 * one.gradients
    # The optimizer is sharded over all ranks in each case.
    assert tensor.optimizer == pytest.approx(one.optimizer)


def test_float32_model_has_no_weight_copy_and_double_activations():
    half, single = training_memory(SHAPE, Layout()), training_memory(SHAPE, Layout(), precision=Precision(compute=4))
    assert single.compute_weights == 0
    assert single.activations > 1.9 * half.activations
    names = [field.name for field in fields(half)]
    assert half.total == sum(getattr(half, name) for name in names)
    assert replace(half, reference=5.0).total == half.total + 5.0


def test_activation_memory_with_interleaved_stages_and_checkpointing():
    layout = Layout(backend="megatron", gpus=4, pipeline=2)
    plain = training_memory(SHAPE, layout, micro_batches=8).activations
    # The first stage starts 2 + 2 + 1 pieces before its first backward, i.e. 2.5 micro-batches.
    interleaved = training_memory(SHAPE, replace(layout, virtual=2), micro_batches=8)
    assert interleaved.activations == pytest.approx(plain * 2.5 / 2)
    selective = training_memory(SHAPE, replace(layout, checkpointing="selective"), micro_batches=8)
    full = training_memory(SHAPE, replace(layout, checkpointing="full"), micro_batches=8)
    assert plain > 1.8 * selective.activations > 6 * full.activations
