"""Experts stay aligned with the tokens of a stream."""

import numpy as np

from agentloop.types.routed_experts import RoutedExperts, joined
from agentloop.types.trajectory import SegmentKind, Trajectory


def experts(start, values):
    return RoutedExperts(start, np.array(values, np.int16).reshape(-1, 1, 1))


def known(trajectory):
    return [] if trajectory.routed is None else trajectory.routed.experts.flatten().tolist()


def test_known_experts_stay_and_new_ones_follow():
    trajectory = Trajectory()
    trajectory.append(SegmentKind.PROMPT, [1, 2, 3])
    trajectory.add_routed(None)
    trajectory.add_routed(experts(1, [9]))  # the first token is missing
    assert known(trajectory) == []
    trajectory.add_routed(experts(0, [4, 5]))
    trajectory.add_routed(experts(0, [7, 7, 6, 8]))  # of more tokens than there are
    assert known(trajectory) == [4, 5, 6]
    trajectory.append(SegmentKind.OBSERVATION, [4, 5])
    trajectory.add_routed(experts(4, [1]))
    assert known(trajectory) == [4, 5, 6]
    trajectory.add_routed(experts(2, [0, 2, 3]))
    assert known(trajectory) == [4, 5, 6, 2, 3]
    assert trajectory.num_routed == 5


def test_a_turn_that_two_engines_sampled_keeps_the_experts_of_the_first():
    assert joined(None, None) is None
    assert joined(experts(2, [1]), None) == experts(2, [1])
    whole = joined(experts(2, [1, 2]), experts(2, [5, 6, 7]))
    assert whole.start == 2
    assert whole.experts.flatten().tolist() == [1, 2, 7]
    assert joined(None, experts(2, [5])).end == 3
