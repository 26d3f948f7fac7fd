"""The recipe terminal: rows of generated tasks, and what the warm-up of its tiny run shows."""

import random

import pytest

from agentloop.envs.harbor.tasks.task import HarborTask
from agentloop.recipes.terminal.task import held_out_rows, rows
from agentloop.recipes.terminal.tiny_task import trace


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_rows_are_made_once(tmp_path):
    options = {"levels": [1], "max_steps": 1, "image": "builtin:busybox"}
    first = list(rows(5, **options))
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("task.toml")}
    assert list(rows(5, **options)) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("task.toml")} == made
    assert len({row["id"] for row in first}) == 5
    assert HarborTask.load(first[0]["task"]).config.environment.docker_image == "builtin:busybox"


def test_held_out_tasks_are_others():
    train = {HarborTask.load(row["task"]).steps[0].instruction for row in rows(60, levels=[1], max_steps=1)}
    held_out = {HarborTask.load(row["task"]).steps[0].instruction for row in held_out_rows(60, levels=[1], max_steps=1)}
    assert len(train & held_out) < 3


def test_the_warm_up_shows_commands_on_the_words_of_the_instruction():
    rng = random.Random(0)
    right = 0
    for _ in range(200):
        asked, call, *_ = trace(rng)
        command = call["tool_calls"][0]["function"]["arguments"]["command"]
        words = [
            word for word in command.replace("/", " ").split() if word.islower() and word.isalpha() and len(word) > 4
        ]
        right += all(word in asked["content"] for word in words if word not in ("mkdir", "touch", "chmod"))
    assert 60 < right < 200
