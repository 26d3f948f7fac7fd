"""Players that cannot play are named before a run starts."""

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.episodes.setup import RunTasks
from agentloop.errors import UserError

GAMES = """
async def run(task, players):
    return {"first": 1.0}

def weak(messages, rng):
    return "1 1"

def alone(messages):
    return "1 1"
"""


def load(tmp_path, *, play="run", opponent="policy", row="{}"):
    (tmp_path / "games.py").write_text(GAMES)
    (tmp_path / "rows.jsonl").write_text(f"{{}}\n{row}\n")
    players = {"first": "policy", "second": opponent}
    env = {"factory": "players", "options": {"play": f"{tmp_path}/games.py:{play}", "players": players}}
    data = {"train": f"{tmp_path}/rows.jsonl"}
    return RunTasks.load(load_config(RunConfig, {"model": "m", "data": data, "env": env}))


def test_players_that_can_play_are_accepted(tmp_path):
    opponents = ["policy", {"script": f"{tmp_path}/games.py:weak"}, {"engine": "hf", "models": f"{tmp_path}/pool"}]
    assert len(load(tmp_path, opponent=opponents).train) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"play": "rum"}, r"has no 'rum' to use as program of several players\. Did you mean 'run'"),
        ({"play": "weak"}, "is not a coroutine function"),
        ({"opponent": {"script": "games.py:weak"}}, "There is no file .*games.py for the player"),
        ({"opponent": ["policy", {"script": "{folder}/games.py:weka"}]}, r"no 'weka' to use as player.*mean 'weak'"),
        ({"opponent": {"script": "{folder}/games.py:alone"}}, r"cannot be called as \(conversation, rng\)"),
        ({"opponent": {"engine": "vlm"}}, "Did you mean 'vllm'"),
        ({"opponent": {"engine": "hf", "options": {"model": "{folder}/none"}}}, "no model folder .*/none for a player"),
        ({"opponent": "polcy"}, "The player 'second' in env.options is 'polcy'"),
        ({"row": '{{"players": {{"second": {{"script": "{folder}/games.py:weka"}}}}}}'}, "no 'weka' to use as player"),
    ],
)
def test_a_player_that_cannot_play_ends_the_start(tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(UserError, match=says):
        load(tmp_path, **{key: within(tmp_path, value) for key, value in options.items()})


def within(folder, value):
    if isinstance(value, str):
        return value.format(folder=folder)
    if isinstance(value, list):
        return [within(folder, each) for each in value]
    return {key: within(folder, each) for key, each in value.items()}


def test_players_that_are_no_mapping_are_refused(tmp_path):
    (tmp_path / "games.py").write_text(GAMES)
    (tmp_path / "rows.jsonl").write_text("{}\n")
    env = {"factory": "players", "options": {"play": f"{tmp_path}/games.py:run", "players": "policy"}}
    with pytest.raises(UserError, match="option 'players' of the environment 'players' must be of type Mapping"):
        RunTasks.load(load_config(RunConfig, {"model": "m", "data": {"train": f"{tmp_path}/rows.jsonl"}, "env": env}))
