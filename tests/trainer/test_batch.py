import numpy as np
import pytest

from agentloop.trainer.batch import Sample, make_batch, supervised_batch
from agentloop.trajectory import SegmentKind, Trajectory


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


def test_a_sample_is_the_stream_token_for_token():
    batch = make_batch([[_trajectory(1.0, [5, 6], "a"), _trajectory(0.0, [4], "b")]], "dr_grpo")
    first, second = batch.samples
    assert first.token_ids.tolist() == [1, 2, 5, 6, 9, 7, 8, 5]
    assert first.loss_mask.tolist() == [False, False, True, True, False, False, False, True]
    assert first.logprobs.tolist() == [0, 0, -0.5, -0.5, 0, 0, 0, -0.25]
    assert first.versions.tolist() == [-1, -1, 3, 3, -1, -1, -1, 4]
    assert (first.advantage, second.advantage) == (0.5, -0.5)
    assert (first.reward, first.trajectory_id, first.group_id) == (1.0, "a", "g")
    assert (batch.num_groups, batch.num_tokens, batch.num_sampled, batch.dropped) == (1, 15, 5, {})


def test_what_cannot_be_trained_on_is_dropped_and_counted():
    group = [_trajectory(1.0, [5]), _trajectory(None, [5]), _trajectory(0.0, []), _trajectory(float("nan"), [5])]
    batch = make_batch([group, [_trajectory(None, [])]], "dr_grpo")
    # The one without sampled tokens is an outcome all the same: it is in the mean of its group.
    assert [sample.advantage for sample in batch.samples] == [0.5]
    assert batch.dropped == {"no_reward": 3, "no_sampled_tokens": 1}
    assert batch.num_groups == 2


def test_groups_are_scored_apart():
    batch = make_batch([[_trajectory(1.0, [5]), _trajectory(0.0, [5])], [_trajectory(9.0, [5]), _trajectory(9.0, [5])]])
    assert [round(sample.advantage, 3) for sample in batch.samples] == [0.707, -0.707, 0.0, 0.0]


def test_a_supervised_batch_needs_no_reward():
    batch = supervised_batch([_trajectory(None, [5, 6]), _trajectory(None, [])])
    assert [sample.num_sampled for sample in batch.samples] == [3]
    assert batch.dropped == {"no_sampled_tokens": 1}


def test_a_sample_that_contradicts_itself_is_refused():
    ids = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="differ in length"):
        Sample(ids, np.zeros(2, bool), np.zeros(3, np.float32), ids)
    with pytest.raises(ValueError, match="nothing predicts it"):
        Sample(ids, np.array([True, False, False]), np.zeros(3, np.float32), ids)
