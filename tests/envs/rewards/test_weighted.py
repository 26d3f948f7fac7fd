import pytest

from agentloop.envs.rewards import inline, load_reward
from agentloop.envs.rewards.base import Reward
from agentloop.errors import UserError
from agentloop.registry.named_objects import load_object

STARTED = []


class Held(Reward):
    """Counts its life."""

    def __init__(self, worth: float = 1.0) -> None:
        self.worth = worth

    async def start(self):
        STARTED.append("start")

    async def shutdown(self):
        STARTED.append("shutdown")

    async def __call__(self, trajectory, task):
        return {"reward": self.worth, "turn_rewards": [0.5, 0.25], "seen": 3.0}


@inline
def broken(trajectory, task):
    raise ZeroDivisionError("division by zero")


HELD = f"{__file__}:Held"
BROKEN = f"{__file__}:broken"


async def test_reward_is_the_weighted_sum_with_each_term_logged(episode):
    reward = load_reward(
        ["exact", {"name": "contains", "weight": 0.5}, {"name": HELD, "weight": -2.0, "options": {"worth": 3.0}}]
    )
    trajectory = episode("a", "it is 7")
    assert await reward(trajectory, {"answer": 7}) == 0.0 + 0.5 * 1.0 - 2.0 * 3.0
    assert trajectory.turn_rewards == [-1.0, -0.5]
    assert trajectory.metrics == {
        "reward/exact": 0.0,
        "reward/contains": 1.0,
        "reward/Held": 3.0,
        "reward/Held/seen": 3.0,
    }


async def test_a_term_may_be_named_like_a_part_of_an_outcome(episode):
    trajectory = episode("it is 7")
    terms = [{"name": "exact", "label": "turn_rewards"}, {"name": "contains", "label": "reward", "weight": 0.5}]
    assert await load_reward(terms)(trajectory, {"answer": 7}) == 0.5
    assert trajectory.metrics == {"reward/turn_rewards": 0.0, "reward/reward": 1.0}


async def test_dependent_term_is_skipped_if_its_condition_fails(episode):
    terms = [{"name": "exact", "label": "right"}, {"name": BROKEN, "only_if": "right"}]
    assert await load_reward(terms)(episode("no"), {"answer": "yes"}) == 0.0
    with pytest.raises(ZeroDivisionError):
        await load_reward(terms)(episode("yes"), {"answer": "yes"})


async def test_failed_term_changes_nothing(episode):
    trajectory = episode("a", "b")
    with pytest.raises(ZeroDivisionError):
        await load_reward([HELD, BROKEN])(trajectory, {"answer": "b"})
    assert (trajectory.turn_rewards, trajectory.metrics) == ([0.0, 0.0], {})


async def test_terms_are_started_and_closed():
    started = load_object(f"{__file__}:STARTED", "list")
    reward = load_reward([HELD, {"name": HELD, "label": "again"}])
    await reward.start()
    await reward.shutdown()
    assert started == ["start", "start", "shutdown", "shutdown"]


async def test_turn_rewards_must_match_the_turn_count(episode):
    with pytest.raises(ValueError, match="returned 2 'turn_rewards' for 3 sampled turns"):
        await load_reward(HELD)(episode("a", "b", "c"), {})


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        ([], {}, "is an empty list"),
        ([{"name": "exact", "label": "mean"}], {}, "reward/mean in the log is the run's own: give the term another"),
        (["exact", "exact"], {}, "Two terms of the reward have the label 'exact'"),
        ([{"name": "exact", "only_if": "tags"}, "tags"], {}, "must name an earlier term, got 'tags'"),
        (["exat"], {}, "Did you mean 'exact'"),
        (["exact"], {"tolerance": 1}, "give each term its own"),
        ("math", {"boxd": True}, r"no option 'boxd'.*Options it takes: boxed, timeout, workers"),
        (HELD, {"worthy": 1}, "Options it takes: worth"),
    ],
)
def test_invalid_terms_raise(spec, options, words):
    with pytest.raises(UserError, match=words):
        load_reward(spec, options)
