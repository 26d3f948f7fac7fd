"""Every registered advantage and loss with episodes that have several token streams, and with shaped rewards."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.config.algorithm import AlgorithmConfig, OverlongConfig
from agentloop.config.learner import Aggregation, LearnerConfig
from agentloop.trainer import advantages, losses
from agentloop.trainer.batch.making import make_batch
from agentloop.trainer.batch.outcomes import TokenModels, judges_alone, reason_without_gradient
from agentloop.trainer.objective.objective import Objective
from agentloop.types.trajectory import SegmentKind, Trajectory

_MODELS = TokenModels(
    reference=lambda samples: [np.full(sample.num_sampled, -1.5, np.float32) for sample in samples],
    critic=lambda samples: [np.linspace(0, 0.5, sample.num_sampled, dtype=np.float32) for sample in samples],
    process=lambda samples: [np.linspace(-0.1, 0.1, sample.num_sampled, dtype=np.float32) for sample in samples],
)


def _stream(reward, lengths, turn_rewards=(), *, prompt=1):
    trajectory = Trajectory(reward=reward, turn_rewards=list(turn_rewards or [0.0] * len(lengths)))
    for length in lengths:
        trajectory.append(SegmentKind.OBSERVATION if len(trajectory) else SegmentKind.PROMPT, [prompt])
        trajectory.append(SegmentKind.SAMPLED, [2] * length, logprobs=[-1.0] * length, versions=[0] * length)
    return trajectory


def _group():
    """A group of an episode with three streams, one with a single stream, and one with two."""
    branched, plain, twice = _stream(1.0, [2, 1]), _stream(0.0, [4]), _stream(0.25, [1])
    branched.branches = [_stream(1.0, [3]), _stream(1.0, [1, 2])]
    twice.branches = [_stream(0.5, [5])]
    return [branched, plain, twice]


def _batch(groups, name, **settings):
    greedy = [_stream(0.5, [3]) for _ in groups]
    return make_batch(groups, AlgorithmConfig(advantage=name, **settings), greedy=greedy, models=_MODELS)


@pytest.mark.parametrize("loss", losses.names())
@pytest.mark.parametrize("aggregation", Aggregation)
def test_tokens_of_an_episode_weigh_the_same_in_one_stream_or_in_several(loss, aggregation):
    objective = Objective(LearnerConfig(model="", loss=loss, aggregation=aggregation, aggregation_norm=7.0))
    samples = _batch([_group(), [_stream(1.0, [3]), _stream(0.0, [2])]], "grpo").samples
    num_sampled = [3, 3, 3, 4, 1, 5, 3, 2]
    assert [sample.num_sampled for sample in samples] == num_sampled
    of_episode = np.repeat([9, 4, 6, 3, 2], [3, 1, 2, 1, 1])
    expected = {
        Aggregation.TOKEN_MEAN: np.full(8, 1 / 24),
        Aggregation.SEQ_MEAN_TOKEN_SUM: np.full(8, 1 / 5),
        Aggregation.SEQ_MEAN_TOKEN_MEAN: 1 / (5 * of_episode),
        Aggregation.SEQ_MEAN_TOKEN_SUM_NORM: np.full(8, 1 / 35),
    }
    np.testing.assert_allclose(objective.weights(samples), expected[aggregation])


@pytest.mark.parametrize("name", advantages.names())
def test_overlong_shaping_counts_the_sampled_tokens_of_all_streams_of_an_episode(name):
    """Shaped by hand, the rewards give the same advantages without it."""
    shaped = _batch([_group()], name, overlong=OverlongConfig(max_sampled_tokens=9, buffer=5, penalty=1.0))
    by_hand = _group()
    # 9, 4 and 6 sampled tokens, of which those above 4 cost a fifth each.
    for trajectory, penalty in zip(by_hand, [1.0, 0.0, 0.4], strict=True):
        for stream in (trajectory, *trajectory.branches):
            stream.reward -= penalty
    for found, expected in zip(shaped.samples, _batch([by_hand], name).samples, strict=True):
        np.testing.assert_allclose(found.advantage, expected.advantage, atol=1e-6)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "opo", "remax"])
def test_the_kl_in_the_reward_is_that_of_all_streams_of_an_episode(name):
    """Each sampled token costs 0.1 * 0.5."""
    found = _batch([_group()], name, kl_in_reward=0.1)
    by_hand = _group()
    for trajectory, num_sampled in zip(by_hand, [9, 4, 6], strict=True):
        for stream in (trajectory, *trajectory.branches):
            stream.reward -= 0.05 * num_sampled
    greedy = [_stream(0.5 - 0.05 * 3, [3])]
    expected = make_batch([by_hand], AlgorithmConfig(advantage=name), greedy=greedy)
    for sample, other in zip(found.samples, expected.samples, strict=True):
        np.testing.assert_allclose(sample.advantage, other.advantage, atol=1e-6)


def test_remax_compares_the_greedy_episode_with_the_same_shaping():
    """A group that always does what the greedy episode does has no advantage, whatever the shaping."""
    algorithm = AlgorithmConfig(
        advantage="remax", overlong=OverlongConfig(max_sampled_tokens=6, buffer=4), kl_in_reward=0.2
    )
    group, greedy = [_stream(1.0, [5]), _stream(1.0, [2])], [_stream(1.0, [5])]
    batch = make_batch([group], algorithm, greedy=greedy, models=_MODELS)
    # The second one has no overlong penalty (0.75) and three tokens less of KL (0.1 each).
    np.testing.assert_allclose([sample.advantage for sample in batch.samples], [0.0, 0.75 + 0.3], atol=1e-6)


@st.composite
def _groups(draw):
    """Groups with few values, so that equal rewards, turn rewards and states are frequent."""
    group = []
    for _ in range(draw(st.integers(1, 4))):
        turns = draw(st.integers(1, 3))
        turn_rewards = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=turns, max_size=turns))
        reward = draw(st.sampled_from([None, float("nan"), 0.0, 1.0, 2.0]))
        group.append(_stream(reward, [draw(st.integers(1, 2))] * turns, turn_rewards, prompt=draw(st.integers(0, 1))))
        if draw(st.booleans()):
            group[-1].branches = [_stream(reward, [draw(st.integers(1, 5))])]
    return group


_LONE = [name for name in advantages.names() if judges_alone(AlgorithmConfig(advantage=name))]


@settings(deadline=None)
@given(_groups(), st.sampled_from(_LONE), st.sampled_from([None, OverlongConfig(max_sampled_tokens=5, buffer=3)]))
def test_a_group_has_no_gradient_exactly_if_all_its_advantages_are_zero(group, name, overlong):
    algorithm = AlgorithmConfig(advantage=name, overlong=overlong)
    reason = reason_without_gradient(group, algorithm)
    batch = make_batch([group], algorithm)
    assert (reason is None) == any(sample.has_advantage for sample in batch.samples)
    num_judged = len(group) - batch.dropped.get("no_reward", 0)
    assert (reason == "unjudged") == (reason is not None and num_judged < 2)


def test_groups_with_equal_rewards_and_unequal_turns_keep_their_gradient():
    group = [_stream(1.0, [1, 1], [1.0, 0.0]), _stream(1.0, [1, 1], [0.0, 1.0])]
    found = {name: reason_without_gradient(group, AlgorithmConfig(advantage=name)) for name in _LONE}
    assert {name for name, reason in found.items() if reason is None} == {"turn_grpo", "gigpo"}
    assert set(found.values()) == {None, "equal_rewards"}


def test_groups_without_a_trained_token_say_why():
    assert reason_without_gradient([_stream(1.0, []), _stream(0.0, [])], AlgorithmConfig()) == "no_sampled_tokens"


def test_old_tokens_of_a_branch_do_not_count_in_its_episode():
    sample = _batch([_group()], "grpo").samples[0]
    assert sample.episode == 0
    assert replace(sample, versions=np.where(sample.loss_mask, [0, 0, 0, 0, 5], -1)).since(5).episode == 0
