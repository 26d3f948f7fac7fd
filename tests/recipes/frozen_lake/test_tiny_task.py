"""The games that the small run's model learned to move from."""

import random

from agentloop.recipes.frozen_lake.lake import MOVES
from agentloop.recipes.frozen_lake.tiny_task import MAX_STEPS, trace


def test_games_match_the_environment_text_and_end_with_a_move():
    rng = random.Random(0)
    moves = []
    for messages in (trace(rng) for _ in range(100)):
        told, made = messages[::2], messages[1::2]
        assert messages[-1]["role"] == "assistant"
        assert {message["role"] for message in told} == {"user"}
        assert told[0]["content"].startswith("Go.\n\nleft edge, down ")
        assert told[0]["content"].endswith(f"Answer with one of: {', '.join(MOVES)}.")
        assert len(made) <= MAX_STEPS
        moves += [message["content"] for message in made]
    assert {move: moves.count(move) > len(moves) / 10 for move in MOVES} == dict.fromkeys(MOVES, True)
