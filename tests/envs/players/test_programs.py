import random

import pytest

from agentloop.envs.players.player import ScriptedPlayer
from agentloop.envs.players.program import PlayersProgram, Seat
from agentloop.envs.players.turns import InvalidMove, TurnGame, play_turns
from agentloop.errors import EnvError, UserError

BOTH = {"first": "policy", "second": "policy"}


async def nothing(task, players):
    return {}


def program(players=BOTH, row=None, **options):
    return PlayersProgram(row or {}, play=nothing, players=players, **options)


def test_swapping_moves_every_player_through_all_seats():
    script = {"script": "games.py:opponent"}
    swapped = program({"a": "policy", "b": script, "c": script}, swap=True)
    learners = [[name for name, seat in swapped.seats(place, 5).items() if seat.learns] for place in range(4)]
    assert learners == [["a"], ["b"], ["c"], ["a"]]
    fixed = program({"a": "policy", "b": script})
    assert [fixed.seats(place, 5)["a"].learns for place in range(3)] == [True, True, True]
    later = program({"a": "policy", "b": script}, {"seat": 1}, swap=True)
    assert [later.seats(place, 5)["a"].learns for place in range(3)] == [False, True, False]


def test_one_of_several_players_is_drawn_by_the_seed():
    mixed = program({"a": "policy", "b": ["policy", {"script": "games.py:opponent"}]})
    drawn = [mixed.seats(0, seed)["b"].learns for seed in range(100)]
    assert 20 < sum(drawn) < 80
    assert drawn == [mixed.seats(0, seed)["b"].learns for seed in range(100)]


def test_a_row_may_replace_a_player():
    seats = program(row={"players": {"second": {"script": "games.py:weak"}}}).seats(0, 0)
    assert seats == {"first": Seat(), "second": Seat(script="games.py:weak")}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"players": {"a": "polcy"}}, "The player 'a' in env.options is 'polcy'"),
        ({"players": {"a": {"script": "x.py:f", "engine": "hf"}}}, "write policy"),
        ({"players": {"a": {"engine": "hf", "model": "m"}}}, "no option 'model'. Did you mean 'models'"),
        ({"players": {"a": []}}, "is an empty list"),
        ({"players": {}}, "is empty"),
        ({"players": {"a": {"script": "x.py:f"}, "b": {"engine": "hf"}}}, r"No player of \['a', 'b'\] is always"),
        ({"players": {seat: ["policy", {"script": "x.py:f"}] for seat in "ab"}}, "have no turn to train"),
        ({"players": {"mean": "policy"}}, "A player in env.options is named 'mean', but reward/mean in the log"),
        ({"row": {"id": "a", "seat": "second"}}, "The row 'a' has 'second' in its column seat: write a number"),
        ({"row": {"players": {"third": "policy"}}}, r"names the players \['third'\]"),
    ],
)
def test_unusable_players_are_named(options, says):
    with pytest.raises(UserError, match=says):
        program(**options)


def test_a_program_must_be_a_coroutine_function():
    with pytest.raises(UserError, match="async def run"):
        PlayersProgram({}, play=lambda task, players: {}, players=BOTH)


class Race(TurnGame):
    """The first who says a number above that of the last turn three times wins."""

    def __init__(self, players):
        self.players, self.said = list(players), []

    @property
    def to_move(self):
        return None if len(self.said) == 4 else self.players[len(self.said) % 2]

    def observe(self, player):
        return f"{self.said}"

    def move(self, player, text):
        if not text.isdigit() or (self.said and int(text) <= self.said[-1]):
            raise InvalidMove("Say a higher number.")
        self.said.append(int(text))

    def rewards(self):
        return dict.fromkeys(self.players, 1.0)


def speaking(name, *texts):
    turns = iter(texts)
    return ScriptedPlayer(name, lambda messages, rng: next(turns), 0)


async def test_players_move_in_turn_and_see_only_their_own_conversation():
    players = {"a": speaking("a", "1", "5"), "b": speaking("b", "2", "6")}
    assert await play_turns(Race(players), players, system="Race!") == {"a": 1.0, "b": 1.0}
    assert [message["content"] for message in players["b"].messages] == ["Race!", "[1]", "2", "[1, 2, 5]", "6"]


async def test_players_who_forget_see_the_present_observation_only():
    seen = []

    def shown(messages, rng):
        seen.append([message["content"] for message in messages])
        return str(len(seen))

    players = {name: ScriptedPlayer(name, shown, 0) for name in "ab"}
    await play_turns(Race(players), players, system="Race!", forget=True)
    assert seen == [["Race!", "[]"], ["Race!", "[1]"], ["Race!", "[1, 2]"], ["Race!", "[1, 2, 3]"]]


async def test_an_invalid_move_loses_after_the_retries():
    players = {"a": speaking("a", "1"), "b": speaking("b", "0")}
    assert await play_turns(Race(players), players, forfeit=-2.0) == {"a": 0.0, "b": -2.0}
    players = {"a": speaking("a", "1"), "b": speaking("b", "0")}
    assert await play_turns(Race(players), players) == {"a": 0.0, "b": -1.0}
    players = {"a": speaking("a", "1", "5"), "b": speaking("b", "0", "2", "1", "6")}
    assert await play_turns(Race(players), players, retries=1) == {"a": 1.0, "b": 1.0}
    assert "Say a higher number.\n\n[1]" in [message["content"] for message in players["b"].messages]


async def test_a_scripted_player_that_raises_or_returns_no_text_is_a_failure_of_the_environment():
    with pytest.raises(EnvError, match=r"the scripted player a raised ZeroDivisionError"):
        await ScriptedPlayer("a", lambda messages, rng: 1 / 0, 0).say("Go.")
    with pytest.raises(EnvError, match="returned int"):
        await ScriptedPlayer("a", lambda messages, rng: 5, 0).say("Go.")


async def test_a_script_draws_from_the_seed_of_its_episode():
    async def chosen(messages, rng: random.Random):
        return str(rng.random())

    first, again, other = [await ScriptedPlayer("a", chosen, seed).say("Go.") for seed in (1, 1, 2)]
    assert first == again != other
