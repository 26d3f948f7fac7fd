import numpy as np
import pytest

from agentloop.config.algorithm import AlgorithmConfig, OverlongConfig
from agentloop.trainer.batch.making import make_batch
from agentloop.trainer.batch.outcomes import TokenModels
from agentloop.trainer.batch.train_batch import Sample
from agentloop.types.limits import StopReason
from agentloop.types.trajectory import SegmentKind, Trajectory


def _trajectory(reward: float | None, sampled: list[int], name: str = "") -> Trajectory:
    trajectory = Trajectory(trajectory_id=name, group_id="g", reward=reward)
    trajectory.append(SegmentKind.PROMPT, [1, 2])
    trajectory.append(SegmentKind.SAMPLED, sampled, logprobs=[-0.5] * len(sampled), versions=[3] * len(sampled))
    trajectory.append(SegmentKind.TEMPLATE, [9])
    trajectory.append(SegmentKind.OBSERVATION, [7, 8])
    trajectory.append(
        SegmentKind.SAMPLED, sampled[:1], logprobs=[-0.25] * len(sampled[:1]), versions=[4][: len(sampled)]
    )
    return trajectory


def test_a_sample_equals_its_trajectory_token_for_token():
    batch = make_batch(
        [[_trajectory(1.0, [5, 6], "a"), _trajectory(0.0, [4], "b")]], AlgorithmConfig(advantage="dr_grpo")
    )
    first, second = batch.samples
    assert first.token_ids.tolist() == [1, 2, 5, 6, 9, 7, 8, 5]
    assert first.loss_mask.tolist() == [False, False, True, True, False, False, False, True]
    assert first.logprobs.tolist() == [0, 0, -0.5, -0.5, 0, 0, 0, -0.25]
    assert first.versions.tolist() == [-1, -1, 3, 3, -1, -1, -1, 4]
    assert (first.advantage, second.advantage) == (0.5, -0.5)
    assert (first.reward, first.trajectory_id, first.group_id) == (1.0, "a", "g")
    assert (batch.num_tokens, batch.num_sampled, batch.dropped) == (15, 5, {})


def test_trajectories_that_cannot_be_trained_on_are_dropped_and_counted():
    group = [_trajectory(1.0, [5]), _trajectory(None, [5]), _trajectory(0.0, []), _trajectory(float("nan"), [5])]
    batch = make_batch([group, [_trajectory(None, [])]], AlgorithmConfig(advantage="dr_grpo"))
    # The trajectory without sampled tokens still counts in the mean of its group.
    assert [sample.advantage for sample in batch.samples] == [0.5]
    assert batch.dropped == {"no_reward": 3, "no_sampled_tokens": 1}


def test_branches_are_trained_and_their_episode_counts_once_in_its_group():
    group = [_trajectory(1.0, [5], "a"), _trajectory(0.0, [5], "b"), _trajectory(0.0, [5], "c")]
    group[0].branches = [_trajectory(1.0, [6], "a.1"), _trajectory(None, [6], "a.2"), _trajectory(1.0, [], "a.3")]
    group[1].branches = [_trajectory(0.6, [6], "b.1")]  # a reward of its own
    batch = make_batch([group], AlgorithmConfig(advantage="dr_grpo"))
    found = {sample.trajectory_id: round(sample.advantage, 6) for sample in batch.samples}
    # The mean of the group is 1/3, or (1 + 0.6 + 0) / 3 with b.1 in place of b.
    assert found == {"a": 0.666667, "a.1": 0.466667, "b": -0.333333, "b.1": 0.066667, "c": -0.333333}
    assert batch.dropped == {"no_sampled_tokens": 1}


def test_tokens_of_old_weights_carry_no_loss_and_are_counted():
    group = [_trajectory(1.0, [5, 6], "a"), _trajectory(0.0, [4], "b")]
    old = Trajectory("c", "g", reward=0.0)
    old.append(SegmentKind.PROMPT, [1])
    old.append(SegmentKind.SAMPLED, [5], logprobs=[-0.5], versions=[3])
    turns = AlgorithmConfig(advantage="turn_grpo", advantage_options={"normalise": False})
    group[0].turn_rewards, group[1].turn_rewards, old.turn_rewards = [0.5, 0.25], [0.0, 0.0], [0.0]
    whole = make_batch([[*group, old]], turns, policy_version=5)
    batch = make_batch([[*group, old]], turns, policy_version=5, oldest_version=4)
    first, second = batch.samples
    assert first.loss_mask.tolist() == [False] * 7 + [True]
    assert first.logprobs.tolist() == [0] * 7 + [-0.25]
    assert first.versions.tolist() == [-1] * 7 + [4]
    assert first.advantage.tolist() == whole.samples[0].advantage.tolist()[-1:], "judged as a whole"
    assert second.num_sampled == 1
    assert (batch.num_too_old, batch.dropped) == (4, {"too_old": 1})
    assert (whole.num_too_old, len(whole)) == (0, 3)


def test_groups_are_judged_separately():
    batch = make_batch([[_trajectory(1.0, [5]), _trajectory(0.0, [5])], [_trajectory(9.0, [5]), _trajectory(9.0, [5])]])
    assert [round(sample.advantage, 3) for sample in batch.samples] == [0.707, -0.707, 0.0, 0.0]


def test_inconsistent_samples_are_refused():
    ids = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="have different lengths"):
        Sample(ids, np.zeros(2, bool), np.zeros(3, np.float32), ids)
    with pytest.raises(ValueError, match=r"values of shape \(2,\) for 1 sampled"):
        Sample(ids, np.array([False, True, False]), np.zeros(3, np.float32), ids, advantage=np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="no token predicts it"):
        Sample(ids, np.array([True, False, False]), np.zeros(3, np.float32), ids)


def test_every_token_has_the_advantage_of_its_turn():
    group = [_trajectory(2.0, [5, 6]), _trajectory(0.0, [5, 6])]
    group[0].turn_rewards, group[1].turn_rewards = [0.0, 2.0], [0.0, 0.0]
    batch = make_batch([group], AlgorithmConfig(advantage="turn_grpo", advantage_options={"normalise": False}))
    # Turn rewards 0, 2, 0, 0 minus their mean of 0.5, summed from the end.
    assert batch.samples[0].advantage.tolist() == [1.0, 1.0, 1.5]
    assert batch.samples[1].advantage.tolist() == [-1.0, -1.0, -0.5]


def test_overlong_episodes_lose_reward_by_their_sampled_tokens():
    overlong = OverlongConfig(max_sampled_tokens=10, buffer=4, penalty=2.0)
    assert [overlong.reward(n) for n in (0, 6, 7, 10, 50)] == [0, 0, -0.5, -2, -2]
    # The trajectories have 3 and 6 sampled tokens, and 5 others.
    group = [_trajectory(1.0, [5, 6]), _trajectory(1.0, [5] * 5)]
    batch = make_batch(
        [group], AlgorithmConfig(advantage="dr_grpo", overlong=OverlongConfig(max_sampled_tokens=7, buffer=2))
    )
    assert [sample.advantage for sample in batch.samples] == [0.25, -0.25]


def test_truncated_episodes_can_be_dropped_and_stay_in_the_statistics():
    group = [_trajectory(1.0, [5]), _trajectory(0.0, [5])]
    group[1].stop_reason = StopReason.MAX_TOKENS
    batch = make_batch([group], AlgorithmConfig(advantage="dr_grpo", drop_truncated=True))
    assert [sample.advantage for sample in batch.samples] == [0.5]
    assert batch.dropped == {"truncated": 1}
    assert len(make_batch([group])) == 2


def test_kl_in_the_reward():
    group = [_trajectory(1.0, [5, 6]), _trajectory(1.0, [5, 6]), _trajectory(None, [5])]

    def reference(samples):
        # The rollout logprobs are -0.5, -0.5 and -0.25.
        return [np.array([-0.5, -1.5, -0.25], np.float32), np.array([-0.5, -0.5, -0.25], np.float32)]

    batch = make_batch([group], AlgorithmConfig(advantage="dr_grpo", kl_in_reward=0.1), models=TokenModels(reference))
    np.testing.assert_allclose([sample.advantage for sample in batch.samples], [-0.05, 0.05])


def test_the_greedy_reward_of_each_task_is_its_baseline():
    groups = [[_trajectory(1.0, [5])] for _ in range(4)]
    greedy = [_trajectory(reward, [5]) for reward in (0.25, 2.0, None, float("nan"))]
    batch = make_batch(groups, AlgorithmConfig(advantage="remax"), greedy=greedy, policy_version=4)
    assert [sample.advantage for sample in batch.samples] == [0.75, -1.0, 0.0, 0.0]
    assert {sample.policy_version for sample in batch.samples} == {4}
