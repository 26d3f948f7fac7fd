import random
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.api.recipe import load_run_config
from agentloop.envs.players.player import ScriptedPlayer
from agentloop.envs.players.turns import InvalidMove
from agentloop.recipes.self_play import games
from agentloop.recipes.self_play.games import (
    EQUAL,
    Nim,
    TicTacToe,
    canonical_order,
    matching_pennies,
    nim_moves,
    optimal_nim_moves,
    perfect_nim,
    placed,
    random_nim,
    random_tic_tac_toe,
    tic_tac_toe_value,
    winner_of,
)
from agentloop.recipes.self_play.task import random_cells, rows, tic_tac_toe_rows
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.trainer.run.checks import check_trainable


def wins_nim(piles):
    """Whether the player to move wins, by search."""
    return any(
        not wins_nim([size - count * (pile == at) for at, size in enumerate(piles, 1)])
        for pile, count in nim_moves(piles)
    )


def test_optimal_moves_of_nim_are_those_that_search_finds():
    for piles in product(range(4), range(4), range(3)):
        after = {
            move: [size - move[1] * (move[0] == at) for at, size in enumerate(piles, 1)] for move in nim_moves(piles)
        }
        assert optimal_nim_moves(piles) == [move for move, left in after.items() if not wins_nim(left)]
    assert optimal_nim_moves([3, 4, 5]) == [(1, 2)]


def test_nim_is_won_by_the_last_object():
    game = Nim([1, 2], ["a", "b"])
    game.move("a", "I take 2 1")
    assert (game.piles, game.to_move, game.observe("b")) == ([1, 1], "b", "1 1")
    for wrong in ("3 1", "1 2", "1", "0 1", "1 0", "none"):
        with pytest.raises(InvalidMove):
            game.move("b", wrong)
    game.move("b", "1 1")
    game.move("a", "2 1")
    assert (game.to_move, game.rewards()) == (None, {"a": 1.0, "b": -1.0})


def test_tic_tac_toe_ends_with_three_in_a_row_or_a_full_board():
    game = TicTacToe(["a", "b"])
    for player, cell in zip("ababa", (1, 4, 2, 5, 3), strict=True):
        assert game.to_move == player
        game.move(player, f"cell {cell}")
    assert (game.to_move, game.rewards()) == (None, {"a": 1.0, "b": -1.0})
    with pytest.raises(InvalidMove):
        game.move("b", "1")
    game.cells = "xoxxoxoxo"
    assert game.rewards() == {"a": 0.0, "b": 0.0}


def test_tic_tac_toe_is_a_draw():
    assert tic_tac_toe_value("-" * 9) == 0
    assert winner_of(placed("xx-oo----", 2)) == "x"


def test_canonical_boards_of_equal_positions_look_the_same():
    # A corner is taken: four boards, one look. The move in the shown corner opposite to it is the opposite corner.
    corners = {0: 8, 2: 6, 6: 2, 8: 0}
    shown = set()
    for corner, opposite in corners.items():
        game = TicTacToe(["a", "b"], placed("-" * 9, corner), canonical=True)
        board = game.observe("b").split()
        shown.add(tuple(board))
        game.move("b", str(9 - board.index("x")))
        assert game.cells[opposite] == "o"
    assert len(shown) == 1


@given(st.integers(0, 2**32))
def test_a_canonical_board_shows_the_same_position(seed):
    cells = random_cells(random.Random(seed))
    order = canonical_order(cells)
    assert sorted(order) == list(range(9))
    shown = "".join(cells[cell] for cell in order)
    assert tic_tac_toe_value(shown) == tic_tac_toe_value(cells)
    assert "".join(shown[cell] for cell in canonical_order(shown)) == shown


def test_games_may_begin_at_any_position():
    nim = list(rows(500, piles=(1, 2), any_start=1.0))
    assert {tuple(row["piles"]) for row in nim} == {(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)}
    assert {tuple(row["piles"]) for row in rows(8, piles=(1, 2))} == {(1, 2)}
    assert 0.6 < sum(row["piles"] == [5, 5, 5] for row in rows(500, piles=(5, 5, 5), any_start=0.25)) / 500 < 0.9
    cells = [row["cells"] for row in tic_tac_toe_rows(200, any_start=1.0)]
    assert {9 - each.count("-") for each in cells} == set(range(9))
    assert all(winner_of(each) is None and 0 <= each.count("x") - each.count("o") <= 1 for each in cells)
    game = TicTacToe(["a", "b"], "xx-o-----")
    assert game.to_move == "b"
    assert {row["seat"] for row in tic_tac_toe_rows(4, seat=1)} == {1}
    assert {row["seat"] for row in tic_tac_toe_rows(4)} == {0, 1}


@pytest.mark.parametrize(
    ("said", "rewards"),
    [
        (("heads", "Heads"), (1.0, -1.0)),
        (("tails", "not tails, but heads"), (-1.0, 1.0)),
        (("edge", "heads"), (-1.0, 0.0)),
        (("heads", "edge"), (0.0, -1.0)),
    ],
)
async def test_matching_pennies_rewards_equal_or_different_sides(said, rewards):
    players = {
        name: ScriptedPlayer(name, lambda messages, rng, text=text: text, 0)
        for name, text in zip(("first", "second"), said, strict=True)
    }
    assert tuple((await matching_pennies({}, players)).values()) == rewards
    assert players["first"].messages[0]["content"] == EQUAL


def test_each_cell_is_one_token_of_the_tiny_model():
    tokenizer = build_tokenizer()
    assert {len(tokenizer(" ".join(row["cells"])).input_ids) for row in tic_tac_toe_rows(200, any_start=1.0)} == {9}


@pytest.mark.parametrize("name", ["tiny", "pennies", "tictactoe"])
def test_settings_of_the_tiny_runs_fit_together(name):
    config = load_run_config(str(Path(games.__file__).with_name(f"{name}.yaml")), [])
    check_trainable(config)
    assert config.env.factory == "players"


def test_scripted_players_make_valid_moves():
    rng = random.Random(0)
    for _ in range(50):
        piles = [rng.randrange(6) for _ in range(3)]
        if any(piles):
            board = [{"role": "user", "content": f"That was no move.\n\n{' '.join(map(str, piles))}"}]
            for script in (random_nim, perfect_nim):
                assert tuple(map(int, script(board, rng).split())) in nim_moves(piles)
    assert random_tic_tac_toe([{"role": "user", "content": "x o x x - o o x o"}], rng) == "5"
