import math

import numpy as np
import pytest
import torch

from agentloop.errors import UserError
from agentloop.trainer import corrections
from tests.support.tokens import doubles, tokens

# Two trajectories: ratios 4 and 0.5 (product 2, geometric mean sqrt 2), and 0.1.
_COUNTS = [2, 1]
_LOG_RATIOS = [math.log(4), math.log(0.5), math.log(0.1)]
_ROOT = math.sqrt(2)


def _weights(name, log_ratios=None, counts=None, **options):
    correction = corrections.get(name)
    parsed = corrections.parse_options(correction, options)
    return correction.function(doubles(log_ratios or _LOG_RATIOS), tokens(counts or _COUNTS), parsed).tolist()


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("truncate", {}, [2, 0.5, 0.1]),
        ("truncate", {"cap": 3, "level": "sequence"}, [2, 2, 0.1]),
        ("truncate", {"cap": 1.2, "level": "geometric"}, [1.2, 1.2, 0.1]),
        ("mask", {}, [0, 0.5, 0.1]),
        ("mask", {"low": 0.2, "high": 4.1}, [4, 0.5, 0]),
        ("mask", {"level": "sequence", "high": 1.9}, [0, 0, 0.1]),
        ("mask", {"level": "geometric", "high": 1.9}, [_ROOT, _ROOT, 0.1]),
        ("icepop", {}, [4, 0.5, 0]),
        ("icepop", {"low": 0, "high": 1}, [0, 0.5, 0.1]),
        ("reject", {"low": 0.5, "high": 1.5}, [1, 1, 0]),
        ("reject", {"low": 0.5, "high": 1.5, "level": "sequence"}, [0, 0, 0]),
        ("reject", {"low": 0.4, "high": 5, "level": "token"}, [1, 1, 0]),
        ("veto", {"threshold": 0.4}, [1, 1, 0]),
        ("veto", {"threshold": 0.6}, [0, 0, 0]),
    ],
)
def test_weights_by_hand(name, options, expected):
    np.testing.assert_allclose(_weights(name, **options), expected, rtol=1e-12)


def test_one_bad_token_vetoes_its_trajectory_only():
    assert _weights("veto", [0.0, -12.0, 0.0, 0.0, 0.0], counts=[3, 2]) == [0, 0, 0, 1, 1]


def test_a_long_trajectory_does_not_overflow():
    weights = _weights("mask", [1.0] * 5000, counts=[5000], level="sequence", high=1e5)
    assert weights == [0.0] * 5000


def test_interpolated_logprobs_by_hand():
    """Fresh tokens keep the logprobs they were sampled with; of age d the current ones count d / (d + 1)."""
    current = doubles([-1.0, -1.0, -1.0]).requires_grad_()
    known = tokens([3], rollout=[-2.0, -2.0, -2.0], ages=[0, 1, 3])
    found = corrections.interpolated_logprobs(current, known)
    np.testing.assert_allclose(found, [-2.0, -1.5, -1.25])
    assert not found.requires_grad


def test_tokenwise_corrections():
    def is_tokenwise(name, **options):
        correction = corrections.get(name)
        return correction.tokenwise(corrections.parse_options(correction, options))

    assert is_tokenwise("truncate")
    assert is_tokenwise("icepop")
    assert not is_tokenwise("truncate", level="geometric")
    assert not is_tokenwise("reject")
    assert not is_tokenwise("veto")


def test_names_and_options_that_are_not_known():
    with pytest.raises(UserError, match="Did you mean 'truncate'"):
        corrections.get("truncated")
    with pytest.raises(UserError, match=r"no option 'levl'.*Did you mean 'level'"):
        _weights("truncate", levl="token")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("mask", {"low": 3}, "low is 3 and high is 2"),
        ("icepop", {"high": 0.25}, "low is 0.5 and high is 0.25"),
        ("reject", {"low": 2, "high": 1}, "low is 2 and high is 1"),
    ],
)
def test_bounds_that_would_reject_every_ratio_are_refused(name, options, said):
    with pytest.raises(UserError, match=rf"'{name}' is {{.*}}: {said}, so nothing would be trained\. Set low to high"):
        _weights(name, **options)


def test_a_lower_bound_may_equal_the_upper_one():
    assert _weights("icepop", [0.0, 1.0], counts=[2], low=1, high=1) == [1, 0]
    with pytest.raises(UserError, match=r"corrections\.options\.level"):
        _weights("truncate", level="turn")
    with pytest.raises(ValueError, match="already registered"):
        corrections.register("veto", corrections.VetoOptions)(lambda log_ratio, tokens, options: torch.zeros(0))
