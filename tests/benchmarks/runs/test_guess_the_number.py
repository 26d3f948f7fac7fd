"""The cold start of the game of TextArena, played with the real package."""

import pytest

from benchmarks.runs.guess_the_number import rows


@pytest.fixture
def games(installed_env):
    installed_env("textarena")
    return [[message["content"] for message in row["messages"]] for row in rows(size=40, hint_share=1.0)]


def test_games_end_after_five_guesses_that_agree_with_the_hints(games):
    assert {len(game) for game in games} <= {2, 4, 6, 8, 10}
    for game in games:
        low, high = 1, 20
        for guess, hint in zip(game[1::2], [*game[2::2], ""], strict=True):
            number = int(guess.strip("[]"))
            assert low <= number <= high
            low, high = (number + 1, high) if "higher" in hint else (low, number - 1)
