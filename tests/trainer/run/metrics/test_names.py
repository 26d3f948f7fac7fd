"""Every metric that a run writes is in the reference."""

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.trainer.run.metrics.names import METRICS, find
from agentloop.trainer.run.train import train
from agentloop.trainer.schedule.observers import Stage


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["eval.every=1"],
        ["eval.every=0", "staleness={mode: partial, max_staleness: 1}", "learner.corrections=[truncate]"],
        ["eval.every=0", "algorithm={advantage: gae, group_size: 2, groups_per_step: 4}", "critic={lr: 1e-2}"],
        [
            "eval.every=0",
            "algorithm={advantage: prime, group_size: 4, groups_per_step: 3}",
            "process_reward={lr: 1e-2}",
        ],
    ],
    ids=["evaluation", "partial", "critic", "process reward"],
)
async def test_every_metric_of_a_run_is_listed(sums, settings):
    known = ["run.steps=2", f"learner.reference={sums / 'model'}", "learner.kl_coef=0.1", *settings]
    folder = await train(load_config(RunConfig, sums / "config.yaml", known), sums / "run")
    written = {name for line in folder.read_metrics() for name in line}
    assert len(written) > 30
    assert sorted(name for name in written if find(name) is None) == []


def test_every_stage_is_listed():
    assert [stage for stage in Stage if find(f"time/{stage}") is None] == []


def test_no_line_of_the_reference_hides_another():
    assert [metric.name for metric in METRICS if find(metric.name.replace("*", "x")) is not metric] == []


def test_an_unknown_metric_is_not_found():
    assert find("learner/los") is None
    assert find("time/nothing") is None


@pytest.mark.parametrize("name", ["reward/format", "tool/ok", "stop/max_turns", "queue/dropped/late"])
def test_families_are_listed(name):
    assert find(name) is not None
