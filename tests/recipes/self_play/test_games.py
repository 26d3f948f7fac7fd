import random
from itertools import product

import pytest

from agentloop.envs.players.turns import InvalidMove
from agentloop.recipes.self_play.games import (
    Nim,
    TicTacToe,
    nim_moves,
    optimal_nim_moves,
    perfect_nim,
    placed,
    random_nim,
    random_tic_tac_toe,
    tic_tac_toe_value,
    winner_of,
)


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
    assert tic_tac_toe_value("." * 9) == 0
    assert winner_of(placed("xx.oo....", 2)) == "x"


def test_scripted_players_make_valid_moves():
    rng = random.Random(0)
    for _ in range(50):
        piles = [rng.randrange(6) for _ in range(3)]
        if any(piles):
            board = [{"role": "user", "content": f"That was no move.\n\n{' '.join(map(str, piles))}"}]
            for script in (random_nim, perfect_nim):
                assert tuple(map(int, script(board, rng).split())) in nim_moves(piles)
    assert random_tic_tac_toe([{"role": "user", "content": "x o x x . o o x o"}], rng) == "5"
