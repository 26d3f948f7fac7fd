from array import array

import pytest

from agentloop.envs.rewards.base import OF_THE_RUN
from agentloop.trainer.run.metrics.rollout import learner_metrics, rollout_metrics
from agentloop.trainer.schedule.failures import is_failed
from agentloop.types.limits import StopReason
from agentloop.types.requests import Group, RolloutRequest
from agentloop.types.trajectory import SegmentKind, Trajectory


def episode(reward, *, stop_reason=StopReason.COMPLETED, sampled=3, failures=(), **metrics):
    trajectory = Trajectory(reward=reward, stop_reason=stop_reason, metrics=metrics)
    trajectory.append(SegmentKind.PROMPT, [1, 2])
    trajectory.append(
        SegmentKind.SAMPLED, [3] * sampled, logprobs=array("f", [-1.0] * sampled), versions=array("i", [0] * sampled)
    )
    for kind in failures:
        trajectory.count(kind)
    return trajectory


def _group(name, trajectories):
    return Group(RolloutRequest(group_id=name, row=0, n=len(trajectories), seed=0), trajectories)


def test_reward_metrics_leave_out_episodes_without_a_reward():
    metrics = rollout_metrics([_group("a", [episode(1.0), episode(0.0), episode(None, failures=["judge"])])])
    assert metrics["reward/mean"] == 0.5
    assert metrics["reward/std"] == 0.5
    assert metrics["failures/judge"] == 1
    assert metrics["failures/episodes"] == 1
    assert metrics["failures/engine"] == 0


def test_no_part_of_a_reward_replaces_a_value_of_the_run():
    own = {"reward/mean": 0.25, "reward/std": 0.25, "reward/equal_groups": 0.25}
    trajectories = [episode(1.0, **own), episode(0.0, **own)]
    metrics = rollout_metrics([_group("a", trajectories)])
    assert {name: metrics[name] for name in own} == {"reward/mean": 0.5, "reward/std": 0.5, "reward/equal_groups": 0.0}
    assert {f"reward/{name}" for name in OF_THE_RUN} == set(own)


def test_step_without_rewards_has_no_mean_reward():
    metrics = rollout_metrics([_group("a", [episode(None)])])
    assert "reward/mean" not in metrics


def test_lengths_and_stop_reasons_of_episodes():
    group = _group(
        "a",
        [
            episode(1.0, calls=2, sampled=3),
            episode(0.0, calls=0, sampled=5, stop_reason=StopReason.MAX_TOKENS),
        ],
    )
    metrics = rollout_metrics([group])
    assert metrics["rollout/tool_call_rate"] == 0.5
    assert metrics["rollout/calls"] == 1.0
    assert metrics["rollout/tokens"] == 6.0
    assert metrics["rollout/tokens_max"] == 7.0
    assert metrics["rollout/sampled_tokens"] == 4.0
    assert metrics["rollout/truncated"] == 0.5
    assert metrics["stop/completed"] == metrics["stop/max_tokens"] == 0.5


def test_groups_with_equal_rewards_are_counted():
    groups = [_group("a", [episode(1.0), episode(1.0)]), _group("b", [episode(1.0), episode(0.0)])]
    assert rollout_metrics(groups)["reward/equal_groups"] == 0.5


def test_metrics_of_the_clock_are_under_time():
    trajectory = episode(1.0, **{"seconds": 2.0, "tool/seconds_waiting": 1.0, "tool/rows": 4.0, "reward/format": 0.5})
    metrics = rollout_metrics([_group("a", [trajectory])])
    assert metrics["time/episode_mean"] == 2.0
    assert metrics["time/tool/seconds_waiting"] == 1.0
    assert metrics["tool/rows"] == 4.0
    assert metrics["reward/format"] == 0.5
    assert not [name for name in metrics if "seconds" in name and not name.startswith("time/")]


def test_learner_metrics_keep_seconds_and_rates_apart():
    named = learner_metrics({"loss": 1.0, "seconds/optimizer": 2.0, "tokens_per_second": 3.0, "mfu": 0.5})
    assert named == {
        "learner/loss": 1.0,
        "time/learner_optimizer": 2.0,
        "time/tokens_per_second": 3.0,
        "time/mfu": 0.5,
    }


@pytest.mark.parametrize(
    ("reward", "stop_reason", "failed"),
    [
        (0.0, StopReason.COMPLETED, False),
        (0.0, StopReason.MAX_TOKENS, False),
        (None, StopReason.COMPLETED, True),
        (0.0, StopReason.ENGINE_ERROR, True),
    ],
)
def test_failed_episode_has_no_reward_or_ended_by_a_failure(reward, stop_reason, failed):
    assert is_failed(episode(reward, stop_reason=stop_reason)) is failed


def test_overruns_are_counted_by_stage():
    episodes = [episode(1.0, **{"overruns/close": 1.0}), episode(None, **{"overruns/score": 1.0}), episode(0.0)]
    metrics = rollout_metrics([_group("a", [*episodes, episode(None, **{"overruns/score": 1.0})])])
    assert {name: value for name, value in metrics.items() if "overruns" in name} == {
        "overruns/close": 1.0,
        "overruns/score": 2.0,
    }
