import pytest

from agentloop.envs.rewards import load_reward


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1.0),
        ("a  Tower", ["Spire", "tower"], 1.0),
        ("Tower", {"target": ["the tower"]}, 1.0),
        ("It is the tower", "tower", 0.0),
        ("", "tower", 0.0),
    ],
)
async def test_exact_match_follows_question_answering_normalization(episode, text, answer, value):
    assert await load_reward("exact_match")(episode(text), {"answer": answer}) == value


@pytest.mark.parametrize("answer", ["the", "", [], {"target": None}, {"targets": ["x"]}])
async def test_answers_that_match_nothing_or_everything_raise(episode, answer):
    with pytest.raises(ValueError, match="no text can match"):
        await load_reward("exact_match")(episode("the"), {"answer": answer})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<answer> Oslo. </answer>", 1.0),
        ("<answer>Bergen</answer> no: <answer>Oslo</answer>", 1.0),
        ("<answer>Oslo</answer> no: <answer>Bergen</answer>", 0.25),
        ("Oslo", 0.0),
        ("<answer>Oslo", 0.0),
    ],
)
async def test_search_r1_scores(episode, text, value):
    reward = load_reward("search_r1", {"format_reward": 0.25})
    assert await reward(episode("searching", text), {"answer": {"target": ["Oslo"]}}) == value


async def test_search_r1_ignores_answers_in_the_prompt(episode):
    asked = episode("Oslo", question="Answer inside <answer> and </answer>, as <answer>Oslo</answer>.")
    assert await load_reward("search_r1")(asked, {"answer": "Oslo"}) == 0.0


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        (r"So \boxed{42}", 42, 1.0),
        (r"\boxed{41}, no, \boxed{42}", "42", 1.0),
        (r"\boxed{42}, no, \boxed{41}", "42", 0.0),
        (r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}", 1.0),
        (r"\boxed{0.5}", r"\frac{1}{2}", 0.0),
        (r"\boxed{42}" + " because" * 20, "42", 0.0),
        (r"\boxed{4", "4", 0.0),
        ("42", "42", 0.0),
    ],
)
async def test_strict_box_scores(episode, text, answer, value):
    assert await load_reward("strict_box")(episode(text), {"answer": answer}) == value


@pytest.mark.parametrize(
    ("turns", "value"),
    [
        ([r"\boxed{42}"], 1.0),
        ([r"\boxed{41}"], -1.0),
        (["call", "call", r"\boxed{41}"], -0.8),
        (["call"] * 7 + [r"\boxed{41}"], -0.6),
        (["call", r"\boxed{42}"], 1.0),
    ],
)
async def test_retool_scores_with_verl_shaping(episode, turns, value):
    """min(-0.6, -1 + (num_turns - 2) / 2 * 0.1), where num_turns counts prompt, turns and observations."""
    reward = load_reward("retool", {"tool_shaping": True})
    assert await reward(episode(*turns), {"answer": "42"}) == pytest.approx(value)


async def test_retool_of_the_paper_scores_any_wrong_answer_minus_one(episode):
    assert await load_reward("retool")(episode("call", r"\boxed{41}"), {"answer": "42"}) == -1.0
