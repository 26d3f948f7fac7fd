import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import UserError
from agentloop.trainer import advantages
from agentloop.trainer.advantages import Outcome, group_advantages
from agentloop.trainer.advantages.discounting import discounted
from agentloop.types.trajectory import SegmentKind, Trajectory


def _outcome(reward, turns=((1,),), turn_rewards=None, **known):
    """An episode whose turns are (length, or length and the observation before it) each."""
    trajectory = Trajectory(reward=reward, turn_rewards=list(turn_rewards or [0.0] * len(turns)))
    for length, *shown in turns:
        kind = SegmentKind.OBSERVATION if len(trajectory) else SegmentKind.PROMPT
        trajectory.append(kind, shown or [7])
        trajectory.append(SegmentKind.SAMPLED, [1] * length, logprobs=[-1.0] * length, versions=[0] * length)
    return Outcome(trajectory, **known)


def _evaluate(name, *groups, **options):
    advantage = advantages.get(name)
    found = advantage.function(groups, advantages.parse_options(advantage, options))
    return [[np.asarray(value).tolist() for value in group] for group in found]


def test_grpo_by_hand():
    # mean 0.5, sample variance (4 * 0.25) / 3
    expected = 0.5 / math.sqrt(1 / 3)
    np.testing.assert_allclose(group_advantages([1, 0, 0, 1]), [expected, -expected, -expected, expected], rtol=1e-5)


def test_dr_grpo_and_rloo_by_hand():
    np.testing.assert_allclose(group_advantages([3, 0, 0], "dr_grpo"), [2, -1, -1])
    # Each against the mean of the two others.
    np.testing.assert_allclose(group_advantages([3, 0, 0], "rloo"), [3, -1.5, -1.5])


def test_opo_by_hand():
    # Baseline (1 * 4 + 3 * 0) / 4.
    assert _evaluate("opo", [_outcome(4.0, [(1,)]), _outcome(0.0, [(2,), (1,)])]) == [[3.0, -1.0]]


def test_gpg_by_hand():
    # Four trajectories, one of them with a reward: r - mean counts four times.
    groups = [_outcome(1.0), _outcome(0.0)], [_outcome(0.0), _outcome(0.0)]
    assert _evaluate("gpg", *groups) == [[2.0, -2.0], [0.0, 0.0]]


def test_remax_by_hand():
    groups = [_outcome(1.0, baseline=0.25), _outcome(0.0, baseline=0.25)], [_outcome(1.0)]
    assert _evaluate("remax", *groups) == [[0.75, -0.25], [0.0]]


def test_reinforce_pp_by_hand():
    # Tokens of the step: 1, 1, 1 and -1. Mean 0.5, sample variance (3 * 0.25 + 2.25) / 3 = 1.
    groups = [_outcome(1.0, [(2,), (1,)])], [_outcome(-1.0)]
    np.testing.assert_allclose(np.concatenate(_evaluate("reinforce_pp", *groups)), [0.5, -1.5])


def test_reinforce_pp_has_returns_to_go_of_penalties_and_discounts_sampled_tokens():
    groups = [_outcome(1.0, [(1,), (2,)], penalties=np.array([0.3, 0.2, 0.1]))], [_outcome(0.0, [(1,)])]
    returns = np.array([0.4, 0.7, 0.9, 0.0])
    expected = (returns - returns.mean()) / returns.std(ddof=1)
    (first,), (second,) = _evaluate("reinforce_pp", *groups)
    np.testing.assert_allclose([*first, second], expected, rtol=1e-6)
    # The two sampled tokens of turn 2 are one step of discount apart, those of the observation none.
    ((first,), (second,)) = _evaluate("reinforce_pp", [_outcome(1.0, [(1,), (2,)])], [_outcome(0.0)], gamma=0.5)
    returns = np.array([0.25, 0.5, 1.0, 0.0])
    np.testing.assert_allclose([*first, second], (returns - returns.mean()) / returns.std(ddof=1), rtol=1e-6)


def test_reinforce_pp_baseline_by_hand():
    groups = [_outcome(1.0, [(2,)]), _outcome(0.0)], [_outcome(5.0), _outcome(4.0)]
    tokens = np.array([0.5, 0.5, -0.5, 0.5, -0.5])
    expected = (tokens - tokens.mean()) / tokens.std(ddof=1)
    np.testing.assert_allclose(np.concatenate(_evaluate("reinforce_pp_baseline", *groups)), expected[1:], rtol=1e-6)


def _gae_in_plain_sums(rewards, values, gamma, lam):
    """sum of (gamma lam)^k delta of the k-th token from each token on, as the paper writes it."""
    n = len(rewards)
    deltas = [rewards[t] + gamma * (values[t + 1] if t + 1 < n else 0) - values[t] for t in range(n)]
    return np.array([sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)])


def test_gae_against_its_definition():
    values = np.array([0.5, -0.25, 1.0], np.float32)
    outcome = _outcome(3.0, [(1,), (2,)], [1.0, 0.5], values=values, penalties=np.array([0.1, 0.0, 0.2]))
    # Turn rewards at the ends of their turns, 1.5 for the rest at the very end.
    rewards = [1.0 - 0.1, 0.0, 0.5 + 1.5 - 0.2]
    expected = _gae_in_plain_sums(rewards, values, 0.9, 0.8)
    ((found,),) = _evaluate("gae", [outcome], gamma=0.9, lam=0.8)
    np.testing.assert_allclose(found, (expected - expected.mean()) / expected.std(ddof=1), rtol=1e-6)
    targets = advantages.get("gae").value_targets(outcome, advantages.gae.GaeOptions(gamma=0.9, critic_lam=0.5))
    np.testing.assert_allclose(targets, values + _gae_in_plain_sums(rewards, values, 0.9, 0.5), rtol=1e-6)
    # At lam 1 without discount the targets are the returns, whatever the critic says.
    targets = advantages.get("gae").value_targets(outcome, advantages.gae.GaeOptions())
    np.testing.assert_allclose(targets, np.cumsum(rewards[::-1])[::-1], rtol=1e-6)
    assert outcome.penalties.tolist() == [0.1, 0.0, 0.2]


def test_prime_by_hand():
    rewards = [np.array(part, np.float32) for part in ([0.5, -0.25], [1.0], [2.0])]
    group = [_outcome(1.0, [(1,), (1,)]), _outcome(0.0), _outcome(0.0), _outcome(0.0, [])]
    group = [replace(one, process_rewards=part) for one, part in zip(group, [*rewards, None], strict=True)]
    ((first, second, third, fourth),) = _evaluate("prime", group, gamma=0.5, process_weight=2.0)
    # Outcomes against the mean of the three others: 1, and -1/3. Token rewards against the others' means:
    # 0.5 - 1.5 and -0.25 - 1.5; 1 - (0.125 + 2) / 2; 2 - (0.125 + 1) / 2.
    np.testing.assert_allclose(first, [1 + 2 * (-1.0 + 0.5 * -1.75), 1 + 2 * -1.75])
    np.testing.assert_allclose(second, [-1 / 3 + 2 * (1 - 1.0625)], rtol=1e-6)
    np.testing.assert_allclose(third, [-1 / 3 + 2 * (2 - 0.5625)], rtol=1e-6)
    assert fourth == pytest.approx(-1 / 3)


@given(st.lists(st.floats(-10, 10), max_size=12), st.floats(0, 1))
def test_discounted_sums_against_their_definition(values, gamma):
    n = len(values)
    expected = [sum(gamma ** (k - t) * values[k] for k in range(t, n)) for t in range(n)]
    np.testing.assert_allclose(discounted(np.array(values), gamma), expected, atol=1e-9)
    np.testing.assert_allclose(discounted(np.array(values), 1.0), [sum(values[t:]) for t in range(n)], atol=1e-9)


def test_turn_grpo_by_hand():
    # Rewards of turns 1, 0 and 2: mean 1, deviation 1. Rest of the rewards: 0 and 4, without deviation of 2 sqrt 2.
    group = [_outcome(1.0, [(1,), (2,)], [1.0, 0.0]), _outcome(6.0, [(2,)], [2.0])]
    rest = 2 / math.sqrt(8)
    ((first, second),) = _evaluate("turn_grpo", group, gamma=0.5)
    np.testing.assert_allclose(first, [0 - 0.5 - rest, -1 - rest, -1 - rest], rtol=1e-5)
    np.testing.assert_allclose(second, 1 + rest, rtol=1e-5)
    ((first, second),) = _evaluate("turn_grpo", group, gamma=0.0, outcome_weight=0.5, normalise=False)
    np.testing.assert_allclose(first, [-1.0, -2.0, -2.0])
    assert second == 2.0


def test_turn_grpo_without_rewards_of_turns_is_grpo():
    rewards = [1.0, 0.0, 0.5]
    group = [_outcome(reward, [(2,), (1,)]) for reward in rewards]
    np.testing.assert_allclose(_evaluate("turn_grpo", group), [group_advantages(rewards)])


def test_gigpo_by_hand():
    # Both start in the same state; then one sees 8, the other 9. Returns at the start: 0.5 * 3 and 1.
    group = [_outcome(3.0, [(1, 5), (1, 8)]), _outcome(1.0, [(1, 5), (2, 9)], [1.0, 0.0])]
    ((first, second),) = _evaluate("gigpo", group, gamma=0.5, step_weight=2.0, normalise=False)
    # Episodes +-1; the first turns 1.5 - 1.25 and 1 - 1.25, twice; later states were met once.
    np.testing.assert_allclose(first, [1 + 0.5, 1.0])
    np.testing.assert_allclose(second, [-1 - 0.5, -1.0, -1.0])


def test_gigpo_compares_a_state_that_one_episode_meets_twice():
    group = [_outcome(2.0, [(1, 5), (1, 5)], [0.0, 2.0]), _outcome(2.0, [(1, 6)])]
    ((first, second),) = _evaluate("gigpo", group, gamma=0.5, normalise=False)
    np.testing.assert_allclose(first, [-0.5, 0.5])  # returns 1 and 2
    assert second == 0.0


def test_rewards_of_turns_that_sampled_nothing_belong_to_the_last():
    assert _outcome(6.0, [(1,), (1,)], [1.0, 2.0, 3.0]).turn_rewards.tolist() == [1.0, 5.0]
    assert _outcome(0.0, [(1,), (1,)], [1.0]).turn_rewards.tolist() == [1.0, 0.0]


def test_shaping_and_penalties_are_part_of_the_reward():
    group = [_outcome(1.0, [(2,)], shaping=-0.5, penalties=np.array([0.25, 0.05])), _outcome(0.0)]
    np.testing.assert_allclose(_evaluate("dr_grpo", group), [[0.1, -0.1]])


def test_a_failed_judge_is_left_out_and_is_not_a_zero():
    values = group_advantages([1.0, None, 0.0, math.nan, math.inf])
    np.testing.assert_allclose(values[[0, 2]], group_advantages([1.0, 0.0]))
    assert np.isnan(values[[1, 3, 4]]).all()


_BY_REWARDS = ["dr_grpo", "gigpo", "grpo", "opo", "rloo", "turn_grpo"]


@pytest.mark.parametrize("name", _BY_REWARDS)
@pytest.mark.parametrize("rewards", [[1.0], [0.1] * 7, [None, 2.0]])
def test_a_group_that_says_nothing_has_no_advantage(name: str, rewards: list[float | None]):
    group = [_outcome(reward, [(i + 1, i)]) for i, reward in enumerate(rewards) if reward is not None]
    assert _evaluate(name, group) == [[0.0] * len(group)]


@pytest.mark.parametrize("name", advantages.names())
def test_groups_of_nothing(name):
    assert _evaluate(name) == []
    assert _evaluate(name, [], []) == [[], []]
    # Nothing was sampled: an outcome all the same.
    zero = np.zeros(1, np.float32)
    group = [_outcome(1.0, []), _outcome(0.0, values=zero, process_rewards=zero)]
    assert len(_evaluate(name, group)[0]) == 2


@given(
    st.sampled_from([*_BY_REWARDS, "reinforce_pp_baseline"]),
    st.lists(st.integers(-5, 5), min_size=2, max_size=8),
    st.integers(-3, 3),
)
def test_a_constant_added_to_all_rewards_changes_nothing(name, rewards, constant):
    group, other = ([_outcome(reward + added) for reward in rewards] for added in (0.0, float(constant)))
    np.testing.assert_allclose(_evaluate(name, group), _evaluate(name, other), atol=1e-9)


def test_a_group_without_any_reward_and_an_empty_group():
    assert np.isnan(group_advantages([None, None])).all()
    assert len(group_advantages([])) == 0


def test_names_and_options_that_are_not_known():
    with pytest.raises(UserError, match="Did you mean 'dr_grpo'"):
        group_advantages([1.0, 0.0], "drgrpo")
    with pytest.raises(UserError, match=r"advantage 'gigpo' has no option 'gama'.*Did you mean 'gamma'"):
        _evaluate("gigpo", gama=1)
    with pytest.raises(UserError, match=r"algorithm\.advantage_options\.gamma"):
        _evaluate("gigpo", gamma=2)


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="registered already"):
        advantages.register("grpo")(lambda rewards: rewards)
