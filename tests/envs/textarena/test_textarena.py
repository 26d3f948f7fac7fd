"""The real package, in the interpreter that `agentloop envs install textarena` makes."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from agentloop import play_script
from agentloop.envs.datasets.dataset import load_dataset
from agentloop.envs.textarena.env import TextArena
from agentloop.errors import UserError
from agentloop.types.trajectory import Trajectory
from tests.support.play_all import play_all

CANNOT_BE_PLAYED = {
    "needs words of nltk, which it downloads": (
        "Codenames", "DontSayIt", "Hangman", "LetterAuction", "SpellingBee", "WordChains", "WordLadder", "WordSearch",
        "Wordle",
    ),
    "asks a model of OpenRouter": ("Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions"),
    "its files are not in the package": ("ScorableGames", "UsedCar", "UsedCarNegotiation"),
    "needs gym and BabyAI": ("BabyAiText",),
    "a mistake in the package": ("CharacterConclave", "Countdown", "Cryptarithm", "Klondike", "Slitherlink"),
}  # fmt: skip
SEED = 11  # as in library.py


@pytest.fixture(scope="module")
def package(installed_env):
    return installed_env("textarena")


@pytest.fixture(scope="module")
def library(package):
    """What happens in the library's own loop."""
    script = Path(__file__).with_name("library.py")
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run([package, script], capture_output=True, check=True, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def row_of(game, seed=SEED, **options):
    return {"id": game, "game": game, "seed": seed, "options": options}


def play_again(played):
    """The streams of the players of all games of the library, with the same moves: game -> number -> stream."""
    seats = {game: [f"player{number}" for number in range(found["players"])] for game, found in played.items()}
    envs = {game: TextArena(row_of(game), players=dict.fromkeys(seats[game], "policy")) for game in played}
    moves = {
        f"{game}.{seats[game][number]}": [text for player, _, text in found["turns"] if player == number]
        for game, found in played.items()
        for number in range(found["players"])
    }
    return {
        game: {seats[game].index(stream.role): stream for stream in (trajectory, *trajectory.branches)}
        for game, trajectory in play_all(envs, moves).items()
    }


def differences(found, streams):
    for player in range(found["players"]):
        turns = [(heard, text) for each, heard, text in found["turns"] if each == player]
        stream = streams.get(player, Trajectory())
        said = [message["content"] for message in stream.messages]
        wanted = [text for heard, move in turns for text in ("\n".join(heard), move)]
        if said[: len(wanted)] != wanted:
            yield player, "messages", said, wanted
        if found["rewards"] is not None and turns and stream.reward != found["rewards"].get(str(player)):
            yield player, "reward", stream.reward, stream.error
        if found["rewards"] is None and stream.reward is not None:
            yield player, "ended too early", stream.reward, None


def test_all_games_equal_the_loop_of_the_library_move_for_move(library):
    left_out = {name.partition("-v0")[0] for name in library["failed"]}
    assert left_out == {name for names in CANNOT_BE_PLAYED.values() for name in names}
    played = library["played"]
    assert len(played) == 187
    assert {found["players"] for found in played.values()} == {1, 2, 3, 4, 6}
    again = play_again(played)
    assert {name: list(differences(played[name], again[name])) for name in played} == {name: [] for name in played}


def test_a_game_of_two_gives_each_player_its_reward(package):
    players = {"first": "policy", "second": {"script": f"{__file__}:take_a_pile"}}
    first = play_script(TextArena(row_of("Nim-v0", piles=[1, 2]), players=players), ["So [1 1].", "[1 1]"])
    assert (first.stop_reason, first.reward, first.metrics["reward/invalid_move/first"]) == ("completed", 1.0, 0.0)
    wrong = play_script(TextArena(row_of("Nim-v0", piles=[1, 2]), players=players), ["[9 9]", "I give up"])
    assert (wrong.stop_reason, wrong.reward, wrong.metrics["reward/invalid_move/first"]) == ("completed", -1.0, 1.0)
    assert "take_a_pile" not in str(first.messages)
    assert "[GAME] Player 1 removes 1 from pile 0." in first.messages[2]["content"]
    assert "[Player 0]" not in first.messages[2]["content"]


def take_a_pile(messages, rng):
    piles = messages[-1]["content"].rpartition("Current Pile:")[2].splitlines()[1:]
    sizes = [int(line.rpartition(" ")[2]) for line in piles]
    pile = next(number for number, size in enumerate(sizes) if size)
    return f"[{pile} {sizes[pile]}]"


def test_only_the_move_of_a_turn_is_shown_to_others(package):
    players = {"first": "policy", "second": {"script": f"{__file__}:what_was_said"}}
    for moves, shown in (("turn", "my secret [1 1]"), ("brackets", "[Player 0] [1 1]")):
        said = play_script(TextArena(row_of("Nim-v0"), players=players, moves=moves), ["my secret [1 1]"])
        assert shown in said.error
        assert ("secret" in said.error) == (moves == "turn")


def what_was_said(messages, rng):
    raise ValueError(messages[-1]["content"])


def test_a_player_who_reaches_a_limit_loses(package):
    cut = play_script(TextArena(row_of("Nim-v0"), players={"a": "policy", "b": "policy"}), ["[0 1]"] * 9, max_turns=1)
    assert [(stream.role, stream.reward) for stream in (cut, *cut.branches)] == [("a", -1.0), ("b", 0.0)]


@pytest.mark.parametrize(
    ("row", "players", "says"),
    [
        (row_of("Nim-v0"), 1, "The number of players has to be 2, received 1"),
        (row_of("QuantumTicTacToe-v0"), 1, "asks player 1, but only 1 play"),
        (row_of("Wordle-v0"), 1, "nltk"),
        (row_of("Nim-v0-train"), 2, "TextArena has no game Nim-v0-train: did you mean Nim-v0?"),
    ],
)
def test_a_game_that_cannot_be_played_is_a_failed_episode(package, row, players, says):
    names = [f"player{number}" for number in range(players)]
    trajectory = play_script(TextArena(row, players=dict.fromkeys(names, "policy")), ["[0,1]"] * 5)
    assert (trajectory.reward, trajectory.failures) == (None, {"env": 1})
    assert says in trajectory.error


def test_a_wrong_number_of_players_ends_the_start(package):
    rows = [row_of("Nim-v0"), row_of("Nim-v0"), row_of("TicTacToe-v0")]
    TextArena.check_rows(rows, {"players": {"a": "policy", "b": ["policy", {"script": "x.py:f"}]}})
    with pytest.raises(UserError, match=r"Nim-v0 with the 1 players of env\.options can begin: .* received 1"):
        TextArena.check_rows(rows, {"players": {"a": "policy"}})


def test_rows_take_the_games_in_turn(package):
    options = {"games": {"Nim-v0": {"piles": [1, 2]}, "TicTacToe-v0": None}, "size": 3, "seed": 5}
    rows = load_dataset("agentloop.envs.textarena.env:tasks", options=options, needs_prompt=False)
    assert [(row["game"], row["seed"], row["options"]) for row in rows] == [
        ("Nim-v0", 5, {"piles": [1, 2]}),
        ("TicTacToe-v0", 6, {}),
        ("Nim-v0", 7, {"piles": [1, 2]}),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"games": "Nim"}, "TextArena has no game Nim: did you mean Nim-v0"),
        ({"games": {"Nim-v0": {"pile": [1]}}}, "unexpected keyword argument 'pile'"),
        ({"games": ["Nim-v0", "Nim-v0"]}, "`games` has 'Nim-v0' several times: name it once"),
        ({"games": []}, "is empty"),
        ({"games": "Nim-v0", "size": 0}, "must be at least 1"),
    ],
)
def test_unusable_options_are_named(package, options, says):
    with pytest.raises(UserError, match=says):
        load_dataset("agentloop.envs.textarena.env:tasks", options=options, needs_prompt=False)


def test_unusable_rows_and_moves_are_named(package):
    with pytest.raises(UserError, match="has no game or no seed"):
        TextArena({"id": "a"})
    with pytest.raises(UserError, match="`moves` of textarena is 'last'"):
        TextArena(row_of("Nim-v0"), moves="last")
