"""The real packages, each in the interpreter that `agentloop envs install` makes."""

import asyncio
import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from agentloop import AgentLoop, Limits, play_script
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.datasets.dataset import load_dataset
from agentloop.envs.verifiers.env import Verifiers, tasks
from agentloop.envs.workers.pool import close_pools
from agentloop.episodes.text_renderer import END, TextRenderer
from agentloop.errors import UserError
from agentloop.trainer.run.metrics.rollout import reward_metrics

HERE = Path(__file__).parent
SUMS = {"id": str(HERE / "sums_v1.py"), "config": {"taskset": {"terms": 3}, "agent": {"harness": {"id": "null"}}}}
GUESSES = {"id": str(HERE / "guessing_v0.py"), "api": "v0", "config": {"judge": True, "most": 8}}
PACKAGES = {"v1": "verifiers", "v0": "verifiers_v0"}


@pytest.fixture
def rows_of(installed_env):
    def made(**options):
        installed_env(PACKAGES[options.get("api", "v1")])
        return load_dataset("agentloop.envs.verifiers.env:tasks", options=options, needs_prompt=False)

    return made


def play_all(rows, turns, *, during=None, **limits):
    """Play all rows at the same time; the model says `turns` in each. `during` runs after the first turn of a model."""
    has_begun = asyncio.Event()

    def script(name, turn, prompt, params):
        has_begun.set()
        return [*map(ord, turns[turn]), END]

    async def played():
        loop = AgentLoop(
            ScriptedEngine(script, max_model_len=1 << 20), TextRenderer(), limits=Limits(max_tokens=1 << 20, **limits)
        )
        games = [
            asyncio.ensure_future(loop.run(Verifiers(row), trajectory_id=f"{number}"))
            for number, row in enumerate(rows)
        ]
        if during is not None:
            await has_begun.wait()
            during()
        try:
            return await asyncio.gather(*games)
        finally:
            close_pools()

    return asyncio.run(played())


@pytest.mark.parametrize(
    ("options", "turns"), [(SUMS, ["The sum is 6"]), (GUESSES, ["5", "2", "7", "1"])], ids=["v1", "v0"]
)
def test_rewards_equal_those_of_the_evaluation_of_the_package(installed_env, rows_of, tmp_path, options, turns):
    api = options.get("api", "v1")
    python = installed_env(PACKAGES[api])
    given = [api, options["id"], json.dumps(options["config"]), json.dumps(turns)]
    environment = os.environ | {"PATH": f"{Path(python).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [python, HERE / "library.py", *given], capture_output=True, check=True, cwd=tmp_path, env=environment
    )
    wanted = json.loads(done.stdout.splitlines()[-1])
    rows = rows_of(**options)
    found = play_all(rows, turns)
    assert [each.error for each in found] == [None] * len(rows)
    assert {row["id"]: each.reward for row, each in zip(rows, found, strict=True)} == wanted
    assert len(set(wanted.values())) > 1


def test_an_episode_has_the_tokens_and_the_metrics_of_its_rollout(rows_of):
    trajectory = play_script(Verifiers(rows_of(**GUESSES)[2]), ["5", "2"])
    assert [message["content"] for message in trajectory.messages] == ["Guess my number below 8.", "5", "lower", "2"]
    sampled = [trajectory.token_ids[each.start : each.end].tolist() for each in trajectory.sampled_segments()]
    assert sampled == [[ord("5"), END], [ord("2"), END]]
    logged = reward_metrics([trajectory])
    assert {name: value for name, value in logged.items() if name.startswith("reward/verifiers/")} == {
        "reward/verifiers/found": 1.0,
        "reward/verifiers/num_guesses": 2.0,
        "reward/verifiers/is_a_number": 0.5,
        "reward/verifiers/num_turns": 2.0,
    }
    assert trajectory.reward == pytest.approx(1.3)


def test_a_reward_function_that_raises_fails_the_episode(rows_of):
    (row,) = rows_of(id=str(HERE / "guessing_v0.py"), api="v0", config={"max_turns": 1}, size=1)
    assert play_script(Verifiers(row), ["0"]).reward == pytest.approx(0.9)
    trajectory = play_script(Verifiers(row), ["oops"])
    assert (trajectory.stop_reason, trajectory.reward, trajectory.failures) == ("env_error", None, {"env": 1})
    assert "is_a_number: the judge is broken" in trajectory.error


def test_a_rollout_that_fails_in_the_package_fails_the_episode(rows_of):
    row = rows_of(**SUMS)[0]
    row["data"]["answer"] = 10**9  # the task of this row says that such an answer cannot be judged
    trajectory = play_script(Verifiers(row), ["6"])
    assert (trajectory.stop_reason, trajectory.reward, trajectory.failures) == ("env_error", None, {"env": 1})
    assert "the rollout failed: TaskError" in trajectory.error


def test_a_worker_that_is_killed_fails_its_episodes_and_leaves_nothing(rows_of):
    rows = rows_of(**SUMS)[:2]
    started = {}

    def kill():
        (worker,) = [pid for pid, parent in children() if parent == os.getpid() and mark_of(pid)]
        started.update((pid, mark) for pid, _ in children() if (mark := mark_of(pid)) == mark_of(worker))
        os.kill(worker, signal.SIGKILL)

    found = play_all(rows, ["5"], during=kill)
    assert [each.failures for each in found] == [{"env": 1}] * 2
    assert all("killed by SIGKILL" in each.error for each in found)
    assert len(started) >= 4  # the worker, its guard, and the programs of two rollouts
    until = time.monotonic() + 20
    while any(mark_of(pid) == mark for pid, mark in started.items()):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert play_script(Verifiers(rows[0]), ["0"]).reward == 0.0  # the next episode has a new worker


def children():
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def mark_of(pid):
    with suppress(OSError):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return next((each for each in variables if each.startswith(b"AGENTLOOP_WORKER=")), None)


def test_a_rollout_that_is_out_of_time_ends(rows_of):
    row = rows_of(**SUMS)[0]

    async def slow():
        engine = ScriptedEngine(lambda *_: [END], max_model_len=1 << 20)
        engine.generate = lambda *_, **__: asyncio.sleep(100)
        loop = AgentLoop(engine, TextRenderer(), limits=Limits(max_seconds=8, max_tokens=1 << 20))
        try:
            return await loop.run(Verifiers(row), trajectory_id="slow")
        finally:
            close_pools()

    assert asyncio.run(slow()).stop_reason == "max_seconds"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"id": "no-such-env"}, "taskset 'no-such-env' not found"),
        ({"id": SUMS["id"]}, "the harness bash of the seat agent executes code: set where"),
        ({**SUMS, "config": {"id": "user-sim"}}, "has the seats .*, .*: set seat"),
        (
            {**SUMS, "config": {"agent": {"client": {"type": "eval"}, "harness": {"id": "null"}}}},
            "has its own client",
        ),
        ({**GUESSES, "config": {"group": True}}, "judges the rollouts of a group together"),
    ],
)
def test_what_cannot_be_played_is_refused_at_the_start(rows_of, options, says):
    with pytest.raises(UserError, match=says):
        rows_of(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"id": "x", "size": 0}, "must be at least 1"),
        ({"id": "x", "api": "v2"}, "'v1' or 'v0'"),
        ({"id": "x", "split": "eval"}, "environments of the API v1 select their tasks in `config`"),
        ({"id": "no_such_file.py"}, "There is no file"),
    ],
)
def test_impossible_options_are_refused_without_the_package(options, says):
    with pytest.raises(UserError, match=says):
        next(tasks(**options))


def test_rows_of_other_sources_are_refused():
    with pytest.raises(UserError, match="has no environment: use the rows of"):
        Verifiers({"id": "7", "messages": []})
