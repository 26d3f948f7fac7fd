import math

import numpy as np
import pytest

from agentloop.errors import UserError
from agentloop.trainer import advantages
from agentloop.trainer.advantages import group_advantages


def test_grpo_by_hand():
    # mean 0.5, sample variance (4 * 0.25) / 3
    expected = 0.5 / math.sqrt(1 / 3)
    np.testing.assert_allclose(group_advantages([1, 0, 0, 1]), [expected, -expected, -expected, expected], rtol=1e-5)


def test_dr_grpo_and_rloo_by_hand():
    np.testing.assert_allclose(group_advantages([3, 0, 0], "dr_grpo"), [2, -1, -1])
    # Each against the mean of the two others.
    np.testing.assert_allclose(group_advantages([3, 0, 0], "rloo"), [3, -1.5, -1.5])


def test_a_failed_judge_is_left_out_and_is_not_a_zero():
    values = group_advantages([1.0, None, 0.0, math.nan, math.inf])
    np.testing.assert_allclose(values[[0, 2]], group_advantages([1.0, 0.0]))
    assert np.isnan(values[[1, 3, 4]]).all()


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize("rewards", [[1.0], [0.1] * 7, [None, 2.0]])
def test_a_group_that_says_nothing_has_no_advantage(name: str, rewards: list[float | None]):
    values = group_advantages(rewards, name)
    assert values[[reward is not None for reward in rewards]].tolist() == [0.0] * sum(r is not None for r in rewards)


def test_a_group_without_any_reward_and_an_empty_group():
    assert np.isnan(group_advantages([None, None])).all()
    assert len(group_advantages([])) == 0


def test_an_unknown_name_names_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'dr_grpo'"):
        group_advantages([1.0, 0.0], "drgrpo")


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="registered already"):
        advantages.register("grpo")(lambda rewards: rewards)
