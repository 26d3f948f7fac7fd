"""Episodes of several players with a scripted engine; tokens are characters."""

import asyncio
import random
from pathlib import Path

import pytest

from agentloop import AgentLoop, Limits, UserError, engines
from agentloop.config.algorithm import AlgorithmConfig
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.players.program import PlayersProgram, Seat
from agentloop.episodes.text_renderer import END, TextRenderer
from agentloop.errors import EngineError
from agentloop.players import opponents
from agentloop.players.opponents import close_opponents
from agentloop.recipes.self_play import games
from agentloop.trainer.batch.making import make_batch
from agentloop.types.trajectory import Trajectory
from agentloop.types.trajectory_io import read_jsonl, same, write_jsonl

TINY = Path(__file__).parents[3] / "recipes" / "tiny"
BOTH = {"first": "policy", "second": "policy"}
RANDOM = {"script": "agentloop.recipes.self_play.games:random_nim"}


def loop_of(say, **limits):
    """An agent loop whose model says `say(board, seat)`."""

    def script(trajectory_id, turn, prompt, params):
        last = len(prompt) - [*reversed([END, *prompt])].index(END)
        return [*map(ord, say("".join(map(chr, prompt[last:])), trajectory_id.rpartition(".")[2])), END]

    bounds = {"max_turn_tokens": 1000, "max_tokens": 100_000} | limits
    return AgentLoop(ScriptedEngine(script, max_model_len=100_000), TextRenderer(), limits=Limits(**bounds))


def perfect(board, seat):
    return games.perfect_nim([{"role": "user", "content": board}], random.Random(0))


async def play(say=perfect, players=BOTH, *, place=0, row=None, program=games.nim, limits=None, **options):
    env = PlayersProgram({"piles": [3, 4, 5], **(row or {})}, play=program, players=players, **options)
    trajectory = Trajectory(trajectory_id=f"game-{place}", group_id="game", place=place)
    try:
        return await loop_of(say, **(limits or {})).play(env, trajectory, seed=place)
    finally:
        await close_opponents()


def sampled(stream):
    return "".join(chr(each) for each in stream.token_ids[stream.loss_mask] if each != END)


async def test_each_player_that_learns_has_a_trajectory_with_its_own_reward():
    trajectory = await play()
    (other,) = trajectory.branches
    assert (trajectory.stop_reason, trajectory.role, trajectory.reward) == ("completed", "first", 1.0)
    assert (other.role, other.reward) == ("second", -1.0)
    assert trajectory.metrics["reward/second"] == -1.0
    assert trajectory.messages[0]["content"] == "3 4 5"
    for stream in (trajectory, other):
        said = [message["content"] for message in stream.messages if message["role"] == "assistant"]
        assert sampled(stream) == "".join(said)
    assert trajectory.num_turns + other.num_turns == trajectory.metrics["turns"]


@pytest.mark.parametrize(("place", "seat"), [(0, "first"), (1, "second"), (2, "first")])
async def test_the_turns_of_a_scripted_player_are_not_in_the_trajectory(place, seat):
    trajectory = await play(players={"first": "policy", "second": RANDOM}, place=place, swap=True)
    assert (trajectory.role, trajectory.branches) == (seat, [])
    assert (seat == "second") == (trajectory.messages[0]["content"] != "3 4 5")
    assert sampled(trajectory) == "".join(
        message["content"] for message in trajectory.messages if message["role"] == "assistant"
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", [{"options": {"model": str(TINY / "checkpoint")}}, {"models": str(TINY)}])
async def test_the_turns_of_another_model_are_not_trained(model):
    trajectory = await play(players={"first": "policy", "second": {"engine": "hf", **model}})
    assert (trajectory.role, trajectory.branches, trajectory.stop_reason) == ("first", [], "completed")
    assert trajectory.reward == 0.0  # the other model does not know the game, and its first turn is no move
    assert sampled(trajectory) == "1 2"


async def test_an_opponent_that_cannot_play_ends_the_run(tmp_path):
    for opponent, says in (
        ({"engine": "hf", "models": str(tmp_path)}, "has no models: export one with `agentloop export"),
        ({"engine": "hf", "options": {"modle": "m"}}, "engine 'hf' has no option 'modle'"),
        ({"script": "nowhere.py:f"}, "There is no file"),
    ):
        with pytest.raises(UserError, match=says):
            await play(players={"first": "policy", "second": opponent})


async def test_advantages_compare_the_same_role():
    def say(board, seat):
        return perfect(board, seat) if board != "3 4 5" or say.is_wise else "3 5"

    group = []
    for place in range(4):
        say.is_wise = place % 2 == 0
        group.append(await play(say, place=place))
    outcomes = [(stream.role, stream.reward) for each in group for stream in (each, *each.branches)]
    assert outcomes == [("first", 1.0), ("second", -1.0), ("first", -1.0), ("second", 1.0)] * 2
    batch = make_batch([group], AlgorithmConfig(advantage="dr_grpo"))
    assert [sample.advantage for sample in batch.samples] == [1.0, -1.0, -1.0, 1.0] * 2


async def test_roles_of_different_seats_are_not_compared():
    # The policy always wins as first and always loses as second: neither says how to play.
    players = {"first": "policy", "second": {"script": "agentloop.recipes.self_play.games:perfect_nim"}}

    def fool(board, seat):
        return "1 1" if seat == "second" else perfect(board, seat)

    def invalid(board, seat):
        return "9 9" if seat == "second" else perfect(board, seat)

    group = [await play(invalid if place == 3 else fool, players, place=place, swap=True) for place in range(4)]
    assert [(each.role, each.reward) for each in group] == [("first", 1.0), ("second", -1.0)] * 2
    batch = make_batch([group], AlgorithmConfig(advantage="dr_grpo"))
    assert [float(sample.advantage) for sample in batch.samples] == [0.0] * 4


async def test_a_player_that_reaches_a_limit_loses():
    trajectory = await play(lambda board, seat: perfect(board, seat) + " " * 50, limits={"max_tokens": 60})
    assert trajectory.stop_reason == "completed"
    assert {stream.role: stream.reward for stream in (trajectory, *trajectory.branches)} == {
        "first": -1.0,
        "second": 0.0,
    }


@pytest.mark.parametrize(
    ("outcome", "says"),
    [({}, "returned no reward for each of"), ({"first": 1.0}, "returned no reward"), (None, "returned no reward")],
)
async def test_an_episode_without_the_reward_of_a_learner_fails(outcome, says):
    async def run(task, players):
        await players["first"].say("Go.")
        await players["second"].say("Go.")
        return outcome

    trajectory = await play(lambda board, seat: "Gone.", program=run)
    assert (trajectory.stop_reason, trajectory.reward, trajectory.failures) == ("env_error", None, {"env": 1})
    assert [branch.reward for branch in trajectory.branches] == [None]
    assert says in trajectory.error


async def test_a_program_that_raises_fails_its_episode():
    async def run(task, players):
        await players["first"].say("Go.")
        raise KeyError("judge")

    trajectory = await play(lambda board, seat: "Gone.", program=run)
    assert (trajectory.stop_reason, trajectory.failures) == ("env_error", {"env": 1})
    assert "the program of the players raised KeyError: 'judge'" in trajectory.error


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_failure_of_the_engine_is_counted_once_and_gives_no_reward(goes_on):
    async def run(task, players):
        try:
            await players["first"].say("Go.")
            await players["second"].say("Go.")
        except EngineError:
            if not goes_on:
                raise
        return {"first": 1.0, "second": 1.0}

    def say(board, seat):
        if seat == "second":
            raise EngineError("out of memory")
        return "Gone."

    trajectory = await play(say, program=run)
    assert (trajectory.stop_reason, trajectory.failures) == ("engine_error", {"engine": 1})
    assert trajectory.error == "out of memory"
    assert [stream.reward for stream in (trajectory, *trajectory.branches)] == [None]


async def test_a_debate_is_a_program_of_a_few_lines():
    async def debate(task, players):
        pro = await players["pro"].say("Argue for it.")
        contra = await players["contra"].say(f"Answer: {pro}")
        verdict = await players["judge"].say(f"Who won? {pro} / {contra}", system="You judge.")
        return {"pro": float(verdict == "pro"), "contra": float(verdict == "contra")}

    players = {"pro": "policy", "contra": "policy", "judge": {"script": f"{__file__}:verdict"}}
    trajectory = await play(lambda board, seat: f"I am {seat}.", players, program=debate)
    assert {stream.role: stream.reward for stream in (trajectory, *trajectory.branches)} == {"pro": 0.0, "contra": 1.0}


def verdict(messages, rng):
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[-1]["content"] == "Who won? I am pro. / I am contra."
    return "contra"


async def test_matching_pennies_hides_the_choice_of_the_other():
    trajectory = await play(lambda board, seat: "heads", program=games.matching_pennies)
    assert [stream.reward for stream in (trajectory, *trajectory.branches)] == [1.0, -1.0]
    prompts = [stream.messages[0]["content"] for stream in (trajectory, *trajectory.branches)]
    assert prompts == [games.EQUAL, games.DIFFERENT]


async def test_roles_survive_files(tmp_path):
    trajectory = await play()
    write_jsonl(tmp_path / "games.jsonl", [trajectory])
    (read,) = read_jsonl(tmp_path / "games.jsonl")
    assert same(read, trajectory)
    assert [read.role, read.branches[0].role] == ["first", "second"]


async def test_an_opponent_that_is_still_starting_is_closed(monkeypatch):
    class Slow(ScriptedEngine):
        state = "new"

        async def start(self):
            self.state = "starting"
            await asyncio.sleep(60)

        async def close(self):
            self.state = "closed"

    engine = Slow([[0]])
    monkeypatch.setattr(engines, "create", lambda name, **options: engine)
    monkeypatch.setattr(opponents, "renderer_for", lambda folder: TextRenderer())
    playing = asyncio.create_task(opponents.opponent_of(Seat(engine="hf", options={"model": "m"}), 0))
    while engine.state == "new":  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    await close_opponents()
    assert engine.state == "closed"
    await asyncio.wait([playing])
    assert playing.cancelled()


async def test_an_opponent_that_could_not_start_is_started_again_for_the_next_episode(monkeypatch):
    class Late(ScriptedEngine):
        async def start(self):
            if len(made) == 1:
                raise OSError("no memory")

    made = []

    def make(name, **options):
        made.append(Late([[0]]))
        return made[-1]

    monkeypatch.setattr(engines, "create", make)
    monkeypatch.setattr(opponents, "renderer_for", lambda folder: TextRenderer())
    seat = Seat(engine="hf", options={"model": "m"})
    failed = await asyncio.gather(*(opponents.opponent_of(seat, 0) for _ in range(2)), return_exceptions=True)
    assert [str(each) for each in failed] == ["the engine hf of a player cannot start: no memory"] * 2
    assert (await opponents.opponent_of(seat, 0))[0] is (await opponents.opponent_of(seat, 0))[0] is made[1]
    await close_opponents()
