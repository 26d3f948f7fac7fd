import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.planning.flops import ModelFlops
from agentloop.trainer.sizing.calibration import scale_from_metrics
from agentloop.trainer.sizing.gpus import find
from agentloop.trainer.sizing.layouts import Layout, candidates, check, problems
from agentloop.trainer.sizing.memory import Precision
from agentloop.trainer.sizing.model_shape import ModelShape
from agentloop.trainer.sizing.search import Cluster, Estimate, PlannedRun, estimated, search
from agentloop.trainer.sizing.shapes import shape_of
from agentloop.trainer.sizing.step_time import Work, rollout_seconds, training_seconds

SHAPE = ModelShape.from_config(shape_of("Qwen/Qwen3-8B"))
EXPERTS = ModelShape.from_config(shape_of("Qwen/Qwen3-30B-A3B"))
FLOPS = ModelFlops(per_token=1.5e10, per_head_token=1.2e9, per_pair=6e5)
WORK = Work(trajectories=512, mean_tokens=4096, longest=16384, trained=0.5)


def _run(shape: ModelShape = SHAPE, **options: object) -> PlannedRun:
    return PlannedRun(shape=shape, flops=FLOPS, work=WORK, precision=Precision(), concurrency=32, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tensor": 16, "gpus": 16}, "tensor_parallel=16 does not divide the model's 8 key and value heads"),
        ({"pipeline": 8, "gpus": 8}, "pipeline_parallel=8 does not divide the model's 36 layers"),
        ({"tensor": 2, "gpus": 3}, r"= 2 does not divide 3 ranks"),
        ({"tensor": 4, "context": 4, "gpus": 16}, "tensor_parallel \\* context_parallel = 16 does not divide"),
        ({"expert": 2, "gpus": 2}, "expert_parallel=2 does not divide the model's 0 experts"),
        ({"virtual": 2, "gpus": 2}, "virtual_pipeline=2 needs pipeline_parallel above 1"),
        (
            {"pipeline": 4, "virtual": 2, "gpus": 4},
            "4 \\* virtual_pipeline 2 = 8 does not divide the model's 36 layers",
        ),
    ],
)
def test_impossible_layout_raises_with_the_numbers(degrees: dict[str, int], message: str):
    with pytest.raises(UserError, match=message):
        check(Layout(backend="megatron", **degrees), SHAPE)


def test_tensor_parallelism_requires_megatron():
    with pytest.raises(UserError, match="need megatron"):
        check(Layout(tensor=2, gpus=2), SHAPE)
    check(Layout(gpus=6), SHAPE)


def test_expert_parallelism_divides_the_ranks_of_a_stage():
    check(Layout(backend="megatron", gpus=8, tensor=2, pipeline=2, expert=4), EXPERTS)
    with pytest.raises(UserError, match="expert_parallel=8 does not divide the 4 ranks of a stage"):
        check(Layout(backend="megatron", gpus=8, tensor=2, pipeline=2, expert=8), EXPERTS)


@given(st.sampled_from([1, 2, 4, 6, 8, 16, 32]), st.sampled_from([SHAPE, EXPERTS]))
def test_candidates_use_every_gpu_and_fit_the_longest_episode(gpus: int, shape: ModelShape):
    found = list(candidates(gpus, 8, 16384, ("fsdp", "megatron"), shape))
    assert len(set(found)) == len(found) > 0
    for layout in found:
        assert layout.data * layout.tensor * layout.pipeline * layout.context == gpus
        assert layout.token_budget % 16384 == 0
        assert layout.tensor <= 8


def test_layout_settings_round_trip():
    for layout in candidates(8, 8, 16384, ("fsdp", "megatron"), EXPERTS):
        config = LearnerConfig(model="m", **layout.settings())  # type: ignore[arg-type]
        assert Layout.of(config, 8) == layout


def test_fitting_layouts_are_ranked_and_others_explained():
    cluster = Cluster(gpu=find("H200"), gpus=8)
    found = search(_run(), cluster, ("fsdp", "megatron"))
    seconds = [estimate.step_seconds for estimate in found.fitting]
    assert all(later > 0.98 * earlier for earlier, later in pairwise(seconds))
    for estimate in found.fitting:
        learner, engine = estimate.training.total, estimate.engine_weights + estimate.cache
        used = max(learner, engine) if estimate.sharing.sleeps else learner + engine
        assert used < cluster.gpu.memory
        assert not list(problems(estimate.layout, SHAPE))
    assert any("activations" in reason for reason in found.obstacles)
    assert any("does not divide" in reason for reason in found.obstacles)


def test_search_on_a_small_gpu_reports_the_weights():
    found = search(_run(), Cluster(gpu=find("RTX-4090"), gpus=1, sleep=False), ("fsdp",))
    assert not found.fitting
    assert found.obstacles.most_common(1)[0][0].endswith("weights, gradients and optimizer alone.")


def test_engines_sleep_if_memory_is_short_or_a_larger_cache_pays_off():
    def on(sleep: bool | Literal["auto"], budget: int, **run: object) -> Estimate:
        cluster = Cluster(gpu=find("H200"), gpus=8, sleep=sleep)
        return estimated(replace(_run(), **run), cluster, Layout(gpus=8, token_budget=budget), 1)  # type: ignore[arg-type]

    assert on("auto", 16384) == on(False, 16384)
    awake, asleep = on(False, 24000), on(True, 24000)
    assert "next to the learner has no room" in awake.obstacle
    assert not asleep.obstacle
    assert on("auto", 24000) == asleep
    assert asleep.settings(Cluster(gpu=find("H200"), gpus=8))["placement.sleep"] is True
    # Weights and moments go to the host and back, and new weights pass through it.
    moved = (12 + 12) * SHAPE.parameters / 8 + 4 * SHAPE.parameters
    assert asleep.step_seconds == pytest.approx(asleep.training_seconds + asleep.rollout_seconds + moved / 25e9)
    assert asleep.cache == pytest.approx(find("H200").memory - 2 * SHAPE.parameters - 4.5 * 2**30)
    # Both fit, but the remaining cache holds only a sixth of the episodes.
    many = {"work": replace(WORK, trajectories=8192), "concurrency": 256}
    assert not on(False, 16384, **many).obstacle
    assert on("auto", 16384, **many) == on(True, 16384, **many)


def test_sleeping_engines_need_memory_for_new_weights_beside_the_learner():
    found = estimated(_run(), Cluster(gpu=find("RTX-4090"), gpus=8, sleep=True), Layout(gpus=8), 1)
    assert found.obstacle
    assert search(_run(), Cluster(gpu=find("RTX-4090"), gpus=1), ("fsdp",)).fitting[0].layout.offload == "all"


@pytest.mark.parametrize("sleep", [False, True])
def test_engines_in_fp8_have_more_cache_and_receive_weights_of_two_bytes(sleep: bool):
    cluster = Cluster(gpu=find("H200"), gpus=8, sleep=sleep)
    half, fp8 = (estimated(_run(engine_fp8=on), cluster, Layout(gpus=8), 2) for on in (False, True))
    assert half.engine_weights == 8_190_735_360
    assert fp8.engine_weights == 4_720_653_312
    assert fp8.cache - half.cache == 3_470_082_048
    assert fp8.sharing.handover_seconds == half.sharing.handover_seconds
    assert fp8.training == half.training


def test_engines_in_fp8_read_their_weights_faster():
    one = Work(trajectories=1, mean_tokens=1000, longest=1000, trained=0.5)
    half, fp8 = (rollout_seconds(SHAPE, one, 1, 1, 1.0, find("H200"), fp8=on) for on in (False, True))
    # 500 tokens; each reads 6,940,164,096 bytes less at 0.7 of the bandwidth.
    assert half - fp8 == pytest.approx(500 * 6_940_164_096 / (0.7 * find("H200").bandwidth))


def test_few_episodes_keep_only_as_many_engines_and_ranks_busy():
    four = Work(trajectories=4, mean_tokens=1000, longest=1000, trained=0.5)
    gpu = find("H200")
    assert rollout_seconds(SHAPE, four, 1, 64, 32, gpu) == rollout_seconds(SHAPE, four, 1, 4, 32, gpu)
    assert rollout_seconds(SHAPE, four, 1, 1, 1, gpu) == pytest.approx(4 * rollout_seconds(SHAPE, four, 1, 4, 1, gpu))
    of_four, of_many = (training_seconds(SHAPE, FLOPS, Layout(gpus=gpus), four, gpu, 64) for gpus in (4, 64))
    assert of_many > 0.9 * of_four  # only AdamW has less to do
    shared = training_seconds(SHAPE, FLOPS, Layout(gpus=64, context=16), four, gpu, 64)
    assert shared < 0.5 * of_many


def test_the_limit_of_episodes_in_flight_holds_for_each_engine():
    one, eight = (estimated(_run(), Cluster(gpu=find("H200"), gpus=gpus), Layout(gpus=gpus), 1) for gpus in (4, 8))
    assert one.slots == eight.slots == 32


def test_engines_on_separate_gpus_overlap_with_training():
    shared = Cluster(gpu=find("H200"), gpus=8)
    divided = Cluster(gpu=find("H200"), gpus=8, engine_gpus=4)
    one, other = (estimated(_run(), at, Layout(gpus=at.learner_gpus), 1) for at in (shared, divided))
    assert one.step_seconds == pytest.approx(one.training_seconds + one.rollout_seconds)
    assert other.step_seconds == pytest.approx(max(other.training_seconds, other.rollout_seconds))
    assert other.training_seconds > one.training_seconds
    assert other.cache > one.cache


def test_measured_run_scales_the_estimates(tmp_path: Path):
    run, cluster, layout = _run(), Cluster(gpu=find("H200"), gpus=1), Layout()
    expected = training_seconds(SHAPE, FLOPS, layout, WORK, cluster.gpu, 8)

    def steps() -> Iterator[dict[str, float]]:
        for number, factor in enumerate([9.0, 5.0, 2.0, 2.0, 2.2]):
            yield {
                "step": number + 1,
                "time/tokens_per_second": WORK.tokens / (factor * expected),
                "learner/computed_tokens": WORK.tokens,
                "learner/num_tokens": WORK.tokens,
                "learner/num_sampled": WORK.tokens / 2,
                "learner/num_trajectories": 512,
            }

    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(step) + "\n" for step in steps()))
    scale = scale_from_metrics(path, run, cluster, layout)
    assert scale == pytest.approx(2.0)
    scaled = estimated(_run(scale=scale), cluster, layout, 1)
    assert scaled.training_seconds == pytest.approx(2 * expected)
    path.write_text('{"step": 1}\n')
    with pytest.raises(UserError, match="0 steps of training"):
        scale_from_metrics(path, run, cluster, layout)


@pytest.mark.parametrize("layout", [Layout(), Layout(gpus=8), Layout(offload="optimizer"), Layout(offload="all")])
def test_adapters_save_weight_gradient_and_optimizer_time(layout: Layout):
    whole, adapters = (
        training_seconds(SHAPE, FLOPS, layout, WORK, find("H200"), 8, lora_rank=rank) for rank in (0, 32)
    )
    assert 0.5 < adapters / whole < 0.75


def test_a_run_that_megatron_cannot_train_has_only_layouts_of_fsdp():
    run, cluster = _run(fsdp_only="megatron has no critic."), Cluster(gpu=find("H200"), gpus=8)
    found = search(run, cluster, ("fsdp", "megatron"))
    assert {estimate.layout.backend for estimate in found.fitting} == {"fsdp"}
    with pytest.raises(UserError, match="megatron has no critic"):
        search(run, cluster, ("megatron",))


def test_auxiliary_models_add_memory_and_time():
    cluster, layout = Cluster(gpu=find("H200"), gpus=8), Layout(gpus=8)
    alone, critic, judge = (
        estimated(_run(auxiliary_models=count, auxiliary_references=judges), cluster, layout, 1)
        for count, judges in ((0, 0), (1, 0), (1, 1))
    )
    state = alone.training.weights + alone.training.optimizer
    assert critic.training.auxiliary == pytest.approx(state)
    assert judge.training.auxiliary == pytest.approx(state + 2 * SHAPE.parameters / 8)
    assert critic.training.total == pytest.approx(alone.training.total + state)
    assert critic.training_seconds == pytest.approx(2 * alone.training_seconds)
    asleep = (estimated(_run(auxiliary_models=count), replace(cluster, sleep=True), layout, 1) for count in (0, 1))
    one, other = (estimate.sharing.learner_away for estimate in asleep)
    assert other == pytest.approx(one + state)
