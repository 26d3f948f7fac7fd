import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import UserError, WrongTypeError
from agentloop.trainer import advantages
from agentloop.trainer.advantages import Outcome, group_advantages
from agentloop.trainer.advantages.base import discounted
from agentloop.types.trajectory import SegmentKind, Trajectory


def _outcome(reward, turns=((1,),), turn_rewards=None, **known):
    """Return an episode; each turn is its length, then optionally the tokens of the observation before it."""
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
    # Each reward minus the mean of the two others.
    np.testing.assert_allclose(group_advantages([3, 0, 0], "rloo"), [3, -1.5, -1.5])


def test_opo_by_hand():
    # Baseline (1 * 4 + 3 * 0) / 4.
    assert _evaluate("opo", [_outcome(4.0, [(1,)]), _outcome(0.0, [(2,), (1,)])]) == [[3.0, -1.0]]


def test_gpg_by_hand():
    # One of four trajectories has a reward, so r - mean is scaled by four.
    groups = [_outcome(1.0), _outcome(0.0)], [_outcome(0.0), _outcome(0.0)]
    assert _evaluate("gpg", *groups) == [[2.0, -2.0], [0.0, 0.0]]


def test_remax_by_hand():
    groups = [_outcome(1.0, baseline=0.25), _outcome(0.0, baseline=0.25)], [_outcome(1.0)]
    assert _evaluate("remax", *groups) == [[0.75, -0.25], [0.0]]


def test_reinforce_pp_by_hand():
    # The tokens of the step are 1, 1, 1 and -1: mean 0.5, sample variance (3 * 0.25 + 2.25) / 3 = 1.
    groups = [_outcome(1.0, [(2,), (1,)])], [_outcome(-1.0)]
    np.testing.assert_allclose(np.concatenate(_evaluate("reinforce_pp", *groups)), [0.5, -1.5])


def test_reinforce_pp_sums_penalties_from_each_token_on_and_discounts_sampled_tokens():
    groups = [_outcome(1.0, [(1,), (2,)], penalties=np.array([0.3, 0.2, 0.1]))], [_outcome(0.0, [(1,)])]
    returns = np.array([0.4, 0.7, 0.9, 0.0])
    expected = (returns - returns.mean()) / returns.std(ddof=1)
    (first,), (second,) = _evaluate("reinforce_pp", *groups)
    np.testing.assert_allclose([*first, second], expected, rtol=1e-6)
    # Only sampled tokens are discounted, not those of the observation.
    ((first,), (second,)) = _evaluate("reinforce_pp", [_outcome(1.0, [(1,), (2,)])], [_outcome(0.0)], gamma=0.5)
    returns = np.array([0.25, 0.5, 1.0, 0.0])
    np.testing.assert_allclose([*first, second], (returns - returns.mean()) / returns.std(ddof=1), rtol=1e-6)


def test_reinforce_pp_baseline_by_hand():
    groups = [_outcome(1.0, [(2,)]), _outcome(0.0)], [_outcome(5.0), _outcome(4.0)]
    tokens = np.array([0.5, 0.5, -0.5, 0.5, -0.5])
    expected = (tokens - tokens.mean()) / tokens.std(ddof=1)
    np.testing.assert_allclose(np.concatenate(_evaluate("reinforce_pp_baseline", *groups)), expected[1:], rtol=1e-6)


def _gae_in_plain_sums(rewards, values, gamma, lam):
    """Return the sum of (gamma lam)^k delta over k tokens later, as the paper writes it."""
    n = len(rewards)
    deltas = [rewards[t] + gamma * (values[t + 1] if t + 1 < n else 0) - values[t] for t in range(n)]
    return np.array([sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)])


def test_gae_against_its_definition():
    values = np.array([0.5, -0.25, 1.0], np.float32)
    outcome = _outcome(3.0, [(1,), (2,)], [1.0, 0.5], values=values, penalties=np.array([0.1, 0.0, 0.2]))
    # Turn rewards count at the end of their turn, and the remaining 1.5 at the very end.
    rewards = [1.0 - 0.1, 0.0, 0.5 + 1.5 - 0.2]
    expected = _gae_in_plain_sums(rewards, values, 0.9, 0.8)
    ((found,),) = _evaluate("gae", [outcome], gamma=0.9, lam=0.8)
    np.testing.assert_allclose(found, (expected - expected.mean()) / expected.std(ddof=1), rtol=1e-6)
    targets = advantages.get("gae").value_targets(outcome, advantages.gae.GaeOptions(gamma=0.9, critic_lam=0.5))
    np.testing.assert_allclose(targets, values + _gae_in_plain_sums(rewards, values, 0.9, 0.5), rtol=1e-6)
    # At lam 1 without discount the targets are the returns and do not depend on the critic.
    targets = advantages.get("gae").value_targets(outcome, advantages.gae.GaeOptions())
    np.testing.assert_allclose(targets, np.cumsum(rewards[::-1])[::-1], rtol=1e-6)
    assert outcome.penalties.tolist() == [0.1, 0.0, 0.2]


def test_prime_by_hand():
    rewards = [np.array(part, np.float32) for part in ([0.5, -0.25], [1.0], [2.0])]
    group = [_outcome(1.0, [(1,), (1,)]), _outcome(0.0), _outcome(0.0), _outcome(0.0, [])]
    group = [replace(one, process_rewards=part) for one, part in zip(group, [*rewards, None], strict=True)]
    ((first, second, third, fourth),) = _evaluate("prime", group, gamma=0.5, process_weight=2.0)
    # Outcomes minus the mean of the three others are 1 and -1/3. Token rewards minus the means of the others are
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
    # Turn rewards 1, 0 and 2 have mean 1 and deviation 1. The rest, 0 and 4, has mean 2 and deviation sqrt 8.
    group = [_outcome(1.0, [(1,), (2,)], [1.0, 0.0]), _outcome(6.0, [(2,)], [2.0])]
    rest = 2 / math.sqrt(8)
    ((first, second),) = _evaluate("turn_grpo", group, gamma=0.5)
    np.testing.assert_allclose(first, [0 - 0.5 - rest, -1 - rest, -1 - rest], rtol=1e-5)
    np.testing.assert_allclose(second, 1 + rest, rtol=1e-5)
    ((first, second),) = _evaluate("turn_grpo", group, gamma=0.0, outcome_weight=0.5, normalise=False)
    np.testing.assert_allclose(first, [-1.0, -2.0, -2.0])
    assert second == 2.0


def test_turn_grpo_without_turn_rewards_is_grpo():
    rewards = [1.0, 0.0, 0.5]
    group = [_outcome(reward, [(2,), (1,)]) for reward in rewards]
    np.testing.assert_allclose(_evaluate("turn_grpo", group), [group_advantages(rewards)])


def test_gigpo_by_hand():
    # Both start in the same state; then one sees 8 and the other 9. The returns at the start are 0.5 * 3 and 1.
    group = [_outcome(3.0, [(1, 5), (1, 8)]), _outcome(1.0, [(1, 5), (2, 9)], [1.0, 0.0])]
    ((first, second),) = _evaluate("gigpo", group, gamma=0.5, step_weight=2.0, normalise=False)
    # Episodes have +-1; first turns add 2 * (1.5 - 1.25) and 2 * (1 - 1.25); later states occur once and add nothing.
    np.testing.assert_allclose(first, [1 + 0.5, 1.0])
    np.testing.assert_allclose(second, [-1 - 0.5, -1.0, -1.0])


def test_gigpo_compares_turns_of_one_episode_in_the_same_state():
    group = [_outcome(2.0, [(1, 5), (1, 5)], [0.0, 2.0]), _outcome(2.0, [(1, 6)])]
    ((first, second),) = _evaluate("gigpo", group, gamma=0.5, normalise=False)
    np.testing.assert_allclose(first, [-0.5, 0.5])  # returns 1 and 2
    assert second == 0.0


def test_rewards_after_the_last_turn_belong_to_it():
    assert _outcome(6.0, [(1,), (1,)], [1.0, 2.0, 3.0]).turn_rewards.tolist() == [1.0, 5.0]
    assert _outcome(0.0, [(1,), (1,)], [1.0]).turn_rewards.tolist() == [1.0, 0.0]


def test_shaping_and_penalties_are_part_of_the_reward():
    group = [_outcome(1.0, [(2,)], shaping=-0.5, penalties=np.array([0.25, 0.05])), _outcome(0.0)]
    np.testing.assert_allclose(_evaluate("dr_grpo", group), [[0.1, -0.1]])


def test_a_trajectory_whose_judge_failed_has_nan_and_does_not_count_as_zero():
    values = group_advantages([1.0, None, 0.0, math.nan, math.inf])
    np.testing.assert_allclose(values[[0, 2]], group_advantages([1.0, 0.0]))
    assert np.isnan(values[[1, 3, 4]]).all()


_BY_REWARDS = ["dr_grpo", "gigpo", "grpo", "opo", "rloo", "turn_grpo"]


@pytest.mark.parametrize("name", _BY_REWARDS)
@pytest.mark.parametrize("rewards", [[1.0], [0.1] * 7, [None, 2.0]])
def test_groups_of_one_or_of_equal_rewards_have_no_advantage(name: str, rewards: list[float | None]):
    group = [_outcome(reward, [(i + 1, i)]) for i, reward in enumerate(rewards) if reward is not None]
    assert _evaluate(name, group) == [[0.0] * len(group)]


@pytest.mark.parametrize("name", advantages.names())
def test_empty_groups_and_episodes_without_sampled_tokens(name):
    assert _evaluate(name) == []
    assert _evaluate(name, [], []) == [[], []]
    # An episode that sampled nothing is still an outcome.
    zero = np.zeros(1, np.float32)
    group = [_outcome(1.0, []), _outcome(0.0, values=zero, process_rewards=zero)]
    assert len(_evaluate(name, group)[0]) == 2


def test_state_td_by_hand():
    # Both begin in 5, with returns 1 and 0, and then see 8. Episode 2 has a stream for each turn, the last turn first.
    whole = _outcome(1.0, [(2, 5), (1, 8)])
    last, first = _outcome(0.0, [(1, 8)], episode=2), _outcome(0.0, [(1, 5)], episode=2)
    other = _outcome(-2.0, [(1, 8)])
    # Values: (1 + 0) / 2 of state 5 and (1 + 0 - 2) / 3 of state 8.
    expected = [[[-5 / 6, -5 / 6, 4 / 3]], [1 / 3, -5 / 6], [-5 / 3]]
    for group, advantages_of_it in zip(_evaluate("state_td", [whole], [last, first], [other]), expected, strict=True):
        for found, value in zip(group, advantages_of_it, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-6)


def test_state_td_with_rewards_of_turns_and_later_turns():
    group = [_outcome(3.0, [(1, 5), (1, 8)], [1.0, 2.0]), _outcome(0.0, [(1, 5), (1, 9)])]
    # Values: (3 + 0) / 2 of state 5, 2 of state 8 and 0 of state 9. The last turns have 0, so lam adds nothing.
    ((first, second),) = _evaluate("state_td", group, lam=0.5)
    np.testing.assert_allclose(first, [1.5, 0.0])
    np.testing.assert_allclose(second, [-1.5, 0.0])


def test_state_td_with_a_prior_moves_values_of_rare_states_to_the_mean():
    # The mean return is 0.5. One more turn with it makes the values 0.75 and 0.25.
    group = [_outcome(1.0, [(1, 5)]), _outcome(0.0, [(1, 6)])]
    assert _evaluate("state_td", group, prior=1) == [[0.25, -0.25]]
    assert _evaluate("state_td", group) == [[0.0, 0.0]]


@given(st.lists(st.tuples(st.integers(-3, 3), st.lists(st.integers(0, 2), min_size=1, max_size=4)), min_size=1))
def test_state_td_with_lam_1_is_the_reward_minus_the_mean_of_the_state(episodes):
    group = [_outcome(float(reward), [(1, state) for state in states]) for reward, states in episodes]
    of_state = {
        state: [reward for reward, states in episodes for each in states if each == state] for state in range(3)
    }
    expected = [[reward - np.mean(of_state[state]) for state in states] for reward, states in episodes]
    for found, values in zip(_evaluate("state_td", group, lam=1.0)[0], expected, strict=True):
        np.testing.assert_allclose(np.broadcast_to(found, len(values)), values, atol=1e-6)


@given(
    st.sampled_from([*_BY_REWARDS, "reinforce_pp_baseline", "state_td"]),
    st.lists(st.integers(-5, 5), min_size=2, max_size=8),
    st.integers(-3, 3),
)
def test_adding_a_constant_to_all_rewards_changes_nothing(name, rewards, constant):
    group, other = ([_outcome(reward + added) for reward in rewards] for added in (0.0, float(constant)))
    np.testing.assert_allclose(_evaluate(name, group), _evaluate(name, other), atol=1e-9)


def test_group_advantages_without_rewards():
    assert np.isnan(group_advantages([None, None])).all()
    assert len(group_advantages([])) == 0


def test_unknown_names_and_options_are_refused():
    with pytest.raises(UserError, match="Did you mean 'dr_grpo'"):
        group_advantages([1.0, 0.0], "drgrpo")
    with pytest.raises(UserError, match=r"advantage 'gigpo' has no option 'gama'.*Did you mean 'gamma'"):
        _evaluate("gigpo", gama=1)
    with pytest.raises(UserError, match=r"algorithm\.advantage_options\.gamma"):
        _evaluate("gigpo", gamma=2)


def test_a_taken_name_is_refused():
    with pytest.raises(ValueError, match="already registered"):
        advantages.register("grpo")(lambda rewards: rewards)


_RETURNED = {
    "one group": lambda groups: [[0.0, 0.0]],
    "one outcome": lambda groups: [[0.0] for _ in groups],
    "None": lambda groups: None,
    "infinity": lambda groups: [[math.inf for _ in group] for group in groups],
    "too few tokens": lambda groups: [[np.zeros(1) for _ in group] for group in groups],
}


@pytest.mark.parametrize("returned", _RETURNED)
def test_a_function_of_the_user_must_return_an_advantage_for_each_outcome(returned):
    def mine(groups, options):
        return _RETURNED[returned](groups)

    advantage = replace(advantages.get("grpo"), function=mine)
    groups = [[_outcome(1.0, [(2,)]), _outcome(0.0, [(2,)])]] * 2
    with pytest.raises(WrongTypeError, match=r"^mine \(test_advantages.py, line \d+\) returned "):
        advantages.evaluate(advantage, groups, advantage.options())


def test_a_function_of_the_user_that_raises_is_named():
    def mine(groups, options):
        return groups[7]

    advantage = replace(advantages.get("grpo"), function=mine)
    with pytest.raises(
        UserError, match=r"^The advantage 'grpo', mine \(test_advantages.py, line \d+\), failed: IndexEr"
    ):
        advantages.evaluate(advantage, [], advantage.options())


@pytest.mark.parametrize("returned", [0.5, [1.0], [[1.0], [0.0]]])
def test_a_function_of_rewards_must_return_a_number_for_each(returned):
    def mine(rewards):
        return returned

    name = f"mine_{np.shape(returned)}"
    advantages.register(name)(mine)
    with pytest.raises(WrongTypeError, match=r"^mine .* for 2 rewards. Return one number for each.$"):
        group_advantages([1.0, 0.0], name)


def test_a_function_of_rewards_is_named_if_it_returns_no_finite_numbers():
    def mine(rewards):
        return rewards * math.inf

    advantages.register("mine_infinite")(mine)
    with pytest.raises(WrongTypeError, match=r"^mine \(test_advantages.py, line \d+\) returned .* not finite"):
        group_advantages([1.0, 0.5], "mine_infinite")
