"""The real package, in the interpreter that `agentloop envs install skyrl_gym` makes."""

import asyncio
import json
import os
import sqlite3
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentloop import play_script
from agentloop.envs.datasets.dataset import load_dataset
from agentloop.envs.skyrl_gym.env import SkyRLGym
from agentloop.errors import UserError
from tests.support.play_all import play_all


@pytest.fixture(scope="module")
def package(installed_env):
    return installed_env("skyrl_gym")


@pytest.fixture(scope="module")
def databases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sql")
    file = folder / "spider" / "database" / "shop" / "shop.sqlite"
    file.parent.mkdir(parents=True)
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE item (name TEXT, price INTEGER)")
        connection.executemany("INSERT INTO item VALUES (?, ?)", [("pen", 2), ("ink", 9)])
    return folder


@pytest.fixture(scope="module")
def search_server():
    """A retriever with the protocol of Search-R1, which the package asks."""

    class Retriever(BaseHTTPRequestHandler):
        def do_POST(self):
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["query"]
            body = json.dumps({"result": [[{"document": {"contents": f"About {query}\nParis."}, "score": 1.0}]]})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Retriever)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/retrieve"
    server.shutdown()


def row(env, ground_truth, **columns):
    spec = {"method": "rule", "ground_truth": ground_truth}
    prompt = [{"role": "system", "content": "Be right."}, {"role": "user", "content": "What is it?"}]
    return {"prompt": prompt, "env_class": env, "reward_spec": spec, **columns}


def episodes(databases, search_url):
    """name -> the row, the configuration of the environment, and the turns of the model."""
    sql = row("text2sql", "SELECT name FROM item WHERE price > 5", db_id="shop", data="spider", max_turns=3)
    asks = "<think>Look.</think><sql>SELECT name FROM item</sql>"
    search = row("search", {"target": ["Paris"]}, max_turns=3)
    code = row("lcb", json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin", "metadata": {}}]))
    both = row("searchcode", "4", max_turns=3)
    turns = row("gsm8k_multi_turn", "4", extra_info={"max_turns": 3})
    at, to = {"db_path": str(databases)}, {"search_url": search_url, "topk": 3, "timeout": 30, "log_requests": False}
    solved = "<think>I know.</think><solution>SELECT name FROM item WHERE price = {}</solution>"
    program = "```python\nprint(2 * int(input()))\n```"
    return {
        "gsm8k right": (row("gsm8k", "4"), {}, ["2 + 2\n#### 4"]),
        "gsm8k wrong": (row("gsm8k", "4"), {}, ["#### 5"]),
        "aime right": (row("aime", "4", reward_model={"ground_truth": "4"}), {}, ["Answer: 4"]),
        "aime wrong": (row("aime", "4", reward_model={"ground_truth": "4"}), {}, ["Answer: 5"]),
        "turns right": (turns, {}, ["#### 5", "hm", "#### 4"]),
        "turns wrong": (turns, {}, ["#### 5", "#### 6", "#### 7"]),
        "sql right": (sql, at, [asks, solved.format(9)]),
        "sql wrong": (sql, at, [asks, solved.format(2)]),
        "sql of no form": (sql, at, ["no SQL", "<sql>SELEC</sql>", "I give up"]),
        "search right": (search, to, ["<search>France</search>", "<answer>Paris</answer>"]),
        "search wrong": (search, to, ["<search>France</search>", "<answer>Rome</answer>"]),
        "code right": (code, {}, [program]),
        "code wrong": (code, {}, [program.replace("2 *", "3 *")]),
        "two tools": (both, {}, ["<tool><python>print(2 + 2)</python></tool>", "<solution>#### 4</solution>"]),
    }


@pytest.fixture(scope="module")
def library(package, databases, search_server):
    asked = {
        name: {"row": row, "config": config, "turns": turns}
        for name, (row, config, turns) in episodes(databases, search_server).items()
    }
    command = [package, Path(__file__).with_name("library.py")]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}  # as in workers: rows of SQL are a set
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, check=True, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def whole(message):
    thinking = message.get("reasoning_content")
    return message["content"] if thinking is None else f"<think>{thinking}</think>{message['content']}"


def in_our_form(row):
    return {**row, "messages": row["prompt"]}


def test_episodes_equal_the_step_loop_of_the_package(library, databases, search_server):
    played = episodes(databases, search_server)
    envs = {
        name: SkyRLGym(in_our_form(row), config=config, allow_code=True) for name, (row, config, _) in played.items()
    }
    found = play_all(envs, {name: turns for name, (_, _, turns) in played.items()})
    assert {name: each.error for name, each in found.items() if each.error} == {}
    for name, wanted in library.items():
        said = [{"role": each["role"], "content": whole(each)} for each in found[name].messages]
        assert wanted["done"], name
        assert (name, said, found[name].reward) == (name, wanted["messages"], pytest.approx(wanted["reward"]))
        metrics = {f"reward/skyrl_gym/{each}": value for each, value in wanted["metrics"].items()}
        assert metrics.items() <= found[name].metrics.items()
    assert found["turns right"].metrics["reward/skyrl_gym/steps"] == 3.0
    rewards = {name: each.reward for name, each in found.items()}
    assert {name for name in rewards if name.endswith("right")} <= {name for name in rewards if rewards[name] >= 1.0}
    assert {name for name in rewards if name.endswith("wrong")} <= {name for name in rewards if rewards[name] < 1.0}
    assert "About France" in str(found["search right"].messages)


def test_thinking_is_part_of_the_turn(package, databases):
    sql = row("text2sql", "SELECT name FROM item WHERE price > 5", db_id="shop", data="spider")
    env = SkyRLGym(in_our_form(sql), config={"db_path": str(databases)})
    turn = {"role": "assistant", "reasoning_content": "I know.", "content": "<solution>SELECT 'ink'</solution>"}

    async def reward():
        await env.reset()
        try:
            return (await env.step(turn))[1]
        finally:
            await env.close()

    assert asyncio.run(reward()) == 1.0  # without a thought, the package gives -1


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ({"env_class": "gsm8k", "reward_spec": {}}, {}, "ground_truth is required"),
        ({"env_class": "gsm9k"}, {}, "gsm9k"),
        ({}, {"id": "no_such_module:gsm8k"}, "No module named 'no_such_module'"),
        ({"env_class": "gsm8k"}, {"config": {"topk": 3}}, "gsm8k has no option topk in its configuration"),
        (
            {"env_class": "search"},
            {"config": {"top": 3}},
            "search has no option top in its configuration: it has",
        ),
        ({"env_class": "text2sql", "db_id": "x", "data": "spider"}, {}, "Database file not found"),
    ],
)
def test_an_environment_that_cannot_be_made_is_a_failed_episode(package, columns, options, says):
    trajectory = play_script(SkyRLGym(in_our_form({**row("", "4"), **columns}), **options), ["#### 4"])
    assert (trajectory.reward, trajectory.failures) == (None, {"env": 1})
    assert says in trajectory.error


def test_an_unknown_environment_ends_the_start(package):
    rows = [in_our_form(row("gsm8k", "4")), in_our_form(row("gsm9k", "4"))]
    SkyRLGym.check_rows(rows[:1], {})
    with pytest.raises(UserError, match=r"No episode of the environment gsm9k can begin: .*gsm9k"):
        SkyRLGym.check_rows(rows, {})


def test_a_module_that_registers_an_environment_is_imported(package):
    question = in_our_form({**row("gsm8k", "4"), "env_class": None})
    assert play_script(SkyRLGym(question, id="skyrl_gym.envs:gsm8k"), ["#### 4"]).reward == 1.0


def test_an_episode_that_a_limit_ends_has_no_reward_if_no_turn_had_one(package):
    turns = row("gsm8k_multi_turn", "4", extra_info={"max_turns": 3})
    trajectory = play_script(SkyRLGym(in_our_form(turns)), ["#### 5", "#### 4"], max_turns=1)
    assert (trajectory.stop_reason, trajectory.reward) == ("max_turns", pytest.approx(0.2 / 3))


def test_a_turn_that_a_limit_cuts_is_judged_as_in_the_package(package):
    trajectory = play_script(SkyRLGym(in_our_form(row("gsm8k", "4"))), ["Let me think about it."], max_turn_tokens=5)
    assert (trajectory.stop_reason, trajectory.reward) == ("completed", 0.0)


def test_rows_are_files_as_skyrl_has_them(package, tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row("gsm8k", "4", data_source="openai/gsm8k", extra_info={"index": 0})) + "\n")
    (loaded,) = load_dataset(str(file), needs_prompt=True)
    assert play_script(SkyRLGym(loaded), ["#### 4"]).reward == 1.0


def test_code_runs_only_where_it_is_allowed(package):
    for env in ("lcb", "searchcode"):
        with pytest.raises(UserError, match=f"{env} runs the model's code without a sandbox"):
            SkyRLGym(in_our_form(row(env, "4")))
    with pytest.raises(UserError, match="runs the model's code without a sandbox"):
        SkyRLGym(in_our_form(row("gsm8k", "4")), id="skyrl_gym.envs:lcb")
    with pytest.raises(UserError, match="has no env_class"):
        SkyRLGym({"id": "a", "messages": []})
