import random

import pytest
from gymnasium.utils.env_checker import check_env

from agentloop.recipes.frozen_lake.lake import MOVES, RandomLake, best_moves, in_words, map_lines
from agentloop.recipes.frozen_lake.task import held_out_rows, train_rows
from agentloop.recipes.frozen_lake.tiny_task import MAX_STEPS, SIZE, trace

MAP = ["SFF", "FHF", "FFG"]


def test_gymnasium_environment_checks_pass():
    check_env(RandomLake(render_mode="ansi"), skip_render_check=False)


def test_seed_determines_the_map():
    lake = RandomLake(size=5)
    assert lake.reset(seed=3) == lake.reset(seed=3)
    assert len({lake.reset(seed=seed)[0] for seed in range(20)}) > 10


def test_observation_describes_the_map():
    assert map_lines(MAP, (1, 0)) == ["S F F", "P H F", "F F G"]
    assert in_words(MAP, (1, 0)) == "left edge, down ice, right hole, up ice. goal 1 down 2 right"
    assert in_words(MAP, (1, 2)) == "left hole, down goal, right edge, up ice. goal 1 down 0 right"


@pytest.mark.parametrize(("player", "expected"), [((0, 0), {"down", "right"}), ((1, 0), {"down"}), ((2, 1), {"right"})])
def test_best_moves_follow_shortest_paths(player, expected):
    assert set(best_moves(MAP, player)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_best_moves_lead_to_the_goal(seed):
    lake = RandomLake(size=5, max_steps=100)
    lake.reset(seed=seed)
    reward = 0.0
    terminated = False
    for _ in range(25):
        assert not terminated
        _, reward, terminated, truncated, _ = lake.step(MOVES.index(lake.best_moves()[0]))
        assert not truncated
        if reward:
            break
    assert (reward, terminated) == (1.0, True)


def test_hole_ends_the_game_and_step_limit_truncates():
    lake = RandomLake(size=4, ice=0.5, max_steps=3)
    lake.reset(seed=0)
    move = "up"  # against the edge: the player stays
    outcomes = [lake.step(MOVES.index(move))[1:4] for _ in range(3)]
    assert outcomes == [(0.0, False, False), (0.0, False, False), (0.0, False, True)]


def test_rows_of_training_and_evaluation_have_different_seeds():
    assert not {row["seed"] for row in train_rows(500)} & {row["seed"] for row in held_out_rows(500)}


def test_traces_are_valid_games():
    rng = random.Random(0)
    for _ in range(30):
        messages = trace(rng)
        moves = [message["content"] for message in messages if message["role"] == "assistant"]
        assert 1 <= len(moves) <= MAX_STEPS
        assert set(moves) <= set(MOVES)
        assert [message["role"] for message in messages] == ["user", "assistant"] * len(moves)
    assert SIZE == 3
