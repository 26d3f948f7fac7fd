import asyncio
import time

import pytest

from agentloop.envs.rewards import load_reward

pytestmark = pytest.mark.slow


@pytest.fixture
async def math():
    """Asks for one comparison; made once, for the processes take a second to start."""
    reward = load_reward("math", {"workers": 1, "timeout": 5.0})
    yield reward
    await reward.shutdown()


CASES = [
    (r"so it is \boxed{0.5}", r"\frac{1}{2}", 1.0),
    (r"\boxed{1/2}", 0.5, 1.0),
    ("The answer is $2\\sqrt{2}$.", r"\sqrt{8}", 1.0),
    (r"\boxed{1+2x}", "2x+1", 1.0),
    (r"\boxed{\{2,1\}}", r"\{1,2\}", 1.0),
    ("The answer is 42.", 42, 1.0),
    ("The answer is 43.", 42, 0.0),
    (r"\boxed{x^2}", "2x", 0.0),
    (r"\boxed{3}", ["2", "3"], 1.0),
    (r"\boxed{1} \boxed{2} \boxed{3}", "2", 0.0),
    ("1, 2 or 3", "2", 0.0),
    ("I do not know", "7", 0.0),
    ("", "7", 0.0),
]


async def test_mathematically_equal_answers_match(episode, math):
    for text, gold, value in CASES:
        assert await math(episode(text), {"answer": gold}) == value, (text, gold)


async def test_answer_that_never_finishes_is_wrong_and_isolated(episode):
    reward = load_reward("math", {"workers": 1, "timeout": 1.0})
    tower = episode(r"\boxed{(9^{9^{9^{9}}}+1) \cdot 3 - 9^{9^{9}}}")
    started = time.monotonic()
    assert await reward(tower, {"answer": 3}) == 0.0
    assert time.monotonic() - started < 60  # the start of the process and its second
    assert tower.metrics == {"reward/timed_out": 1.0}
    assert await reward(episode("4"), {"answer": 4}) == 1.0
    await reward.shutdown()


async def test_strict_mode_reads_only_the_box(episode):
    reward = load_reward("math", {"boxed": True, "workers": 1})
    assert await reward(episode("It is 42"), {"answer": 42}) == 0.0
    assert await reward(episode(r"\boxed{42.0}, not 41"), {"answer": 42}) == 1.0
    await reward.shutdown()


async def test_row_with_empty_answer_raises(episode, math):
    with pytest.raises(ValueError, match="math-verify cannot read the row's answer ''"):
        await math(episode("42"), {"answer": ""})


async def test_retool_reward_can_use_equivalence(episode):
    reward = load_reward("retool", {"strict": False, "workers": 1})
    values = await asyncio.gather(
        *(reward(episode(text), {"answer": r"\frac{1}{2}"}) for text in (r"\boxed{0.5}", r"\boxed{2}", "0.5"))
    )
    assert values == [1.0, -1.0, -1.0]
    await reward.shutdown()
