"""`agentloop view`: the page gets the files of the run, and other hosts get nothing."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient

from agentloop.cli import main
from agentloop.errors import UserError
from agentloop.process.owned_folders import own_label
from agentloop.tools.serving.http.listening import listen
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.lock import locked
from agentloop.trainer.viewer.app import PAGE, application
from agentloop.trainer.viewer.records import Records, task_text
from agentloop.trainer.viewer.runs import Runs, newest
from agentloop.trainer.viewer.stream import pieces_of
from agentloop.types.trajectory_io import write_jsonl


@pytest.fixture
def client(folder):
    return client_of(folder.root)


def client_of(*folders):
    return TestClient(application(Runs(folders)), base_url="http://localhost")


def get(client, what, **parameters):
    return client.get(f"/api/{what}?{urlencode({'run': 'run'} | parameters)}")


def test_a_run_with_its_metrics_and_files(client):
    (run,) = client.get("/api/runs").json()
    assert (run["name"], run["lines"], run["last_step"], run["steps"]) == ("run", 2, 1, 2)
    assert get(client, "config").json()["run"] == {"steps": 2}
    assert get(client, "metrics").json() == [{"step": 0, "eval/reward/mean": 0.25}, {"step": 1, "reward/mean": 0.5}]
    assert [(each["name"], each["kind"], each["step"]) for each in run["files"]] == [
        ("eval_000000", "eval", 0),
        ("step_000001", "train", 1),
    ]


def test_the_state_of_a_run(client, folder):
    def state():
        return client.get("/api/runs").json()[0]["state"]

    assert state() == "stopped"
    with locked(folder.root):
        assert state() == "running"
    folder.model.mkdir()
    assert state() == "finished"
    ended = own_label() + "0"  # a process of another start time
    (folder.root / "run.lock").write_text(json.dumps({"host": socket.gethostname(), "label": ended}))
    assert state() == "finished"  # the process of that record was killed


def test_new_steps_come_alone_and_without_an_incomplete_line(client, folder):
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 2, "reward/mean": 0.7')
    assert get(client, "metrics", since=1).json() == [{"step": 1, "reward/mean": 0.5}]
    with folder.metrics_file.open("a") as file:
        file.write('5, "learner/grad_norm": NaN}\n')
    assert get(client, "metrics", since=2).json() == [{"step": 2, "reward/mean": 0.75, "learner/grad_norm": None}]
    assert get(client, "metrics", since=-1).status_code == 422


def test_a_resumed_run_begins_a_new_generation(client, folder):
    before = client.get("/api/runs").json()[0]
    folder.forget_after(0)
    after = client.get("/api/runs").json()[0]
    assert after["generation"] != before["generation"]
    assert get(client, "metrics").json() == [{"step": 0, "eval/reward/mean": 0.25}]


def test_a_trajectory_comes_in_pieces_with_logprobs_and_versions(client, renderer):
    (row,) = get(client, "episodes", file="step_000001").json()
    assert (row["reward"], row["turns"], row["images"], row["versions"]) == (1.0, 1, 1, [3, 4])
    assert row["task"] == "question"
    shown = get(client, "episode", file="step_000001", episode=0).json()
    prompt, sampled, observation = shown["segments"]
    assert (prompt["text"], prompt["images"], observation["text"]) == ("question", [0, 0], "seen")
    assert "".join(sampled["pieces"]) == "dé 漢字!"
    ids = renderer.encode("dé 漢字!")
    assert [token for piece in sampled["ids"] for token in piece] == ids
    assert sum(sampled["logprobs"]) == pytest.approx(sum(-0.5 * i for i in range(len(ids))))
    assert len(sampled["pieces"]) == len(sampled["logprobs"]) == len(sampled["versions"]) < len(ids)
    assert len(shown["images"]) == 1


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([("system", "Be brief."), ("user", " Why? ")], "Why?"),
        ([("user", "A"), ("assistant", "B"), ("user", "C")], "A"),
        ([("user", [{"type": "image"}, {"type": "text", "text": "What?"}])], "[image] What?"),
        ([("assistant", "B")], ""),
    ],
)
def test_the_task_is_the_first_user_message(messages, text):
    assert task_text({"messages": [{"role": role, "content": content} for role, content in messages]}) == text


def test_first_requests_at_once_load_the_model_once(folder, renderer, monkeypatch):
    """Imports and loading of transformers fail in two threads at once."""
    loaded = []

    def load(path):
        loaded.append(path)
        time.sleep(0.3)
        return renderer

    monkeypatch.setattr("agentloop.rendering.renderer_for", load)
    client = client_of(folder.root)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: get(client, "episode", file="step_000001", episode=0), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len(loaded) == 1


def test_lone_surrogates_of_a_task_are_shown_as_replacement_characters(client, folder, trajectory_of):
    odd = trajectory_of("fine")
    odd.messages = [{"role": "user", "content": "odd \ud800"}]
    folder.write_trajectories("step_000002", [odd])
    (row,) = get(client, "episodes", file="step_000002").json()
    assert row["task"] == "odd \ufffd"
    shown = get(client, "episode", file="step_000002", episode=0).json()
    assert shown["messages"][0]["content"] == "odd \ufffd"


def test_characters_of_several_tokens_are_one_piece():
    table = {1: b"a", 2: b"\xe6", 3: b"\xbc", 4: b"\xa2", 5: b"\xff"}

    def decode(ids):
        return b"".join(table[i] for i in ids).decode(errors="replace")

    assert pieces_of([1, 2, 3, 4, 1], decode) == [("a", 1), ("漢", 3), ("a", 1)]
    assert pieces_of([1, 2], decode) == [("a", 1), ("\N{REPLACEMENT CHARACTER}", 1)]  # an incomplete character
    assert sum(count for _, count in pieces_of([5] * 40, decode)) == 40


def test_without_the_package_for_tokenizers_an_episode_names_its_extra(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    answer = get(client, "episode", run="run", file="step_000001", episode=0)
    assert (answer.status_code, "pip install 'agentloop[train]'" in answer.json()["detail"]) == (422, True)


def test_without_the_tokenizer_the_ids_are_shown(folder):
    folder.write_config({"model": "/gone"})
    shown = get(client_of(folder.root), "episode", file="eval_000000", episode=1).json()
    assert shown["segments"][1]["pieces"] == [f"‹{token}›" for token in shown["segments"][1]["ids"][0]] + [
        f"‹{ids[0]}›" for ids in shown["segments"][1]["ids"][1:]
    ]


def test_a_trajectory_says_whether_it_was_trained_on(client, folder, trajectory_of):
    write_jsonl(folder.root / "trajectories.jsonl", [trajectory_of("yes")], append=True)
    kinds = {
        each["name"]: get(client, "episode", file=each["name"], episode=0).json()["file_kind"]
        for each in client.get("/api/runs").json()[0]["files"]
    }
    assert kinds == {"eval_000000": "eval", "step_000001": "train", "trajectories": "rollout"}
    script = (PAGE / "episode.js").read_text()
    [line] = [line for line in script.splitlines() if line.startswith("const LEARNED = ")]
    assert all(f"{kind}: " in line for kind in kinds.values())  # the page has a label for each kind


@pytest.mark.parametrize(
    "path",
    [
        "/api/episodes?run=run&file=step_000009",
        "/api/episode?run=run&file=eval_000000&episode=2",
        "/api/episodes?run=run&file=config",
        "/api/metrics?run=other",
        "/api/no",
    ],
)
def test_missing_files_are_404(client, path):
    assert client.get(path).status_code == 404


def test_files_that_a_resumed_run_removes_meanwhile_are_missing(client, monkeypatch):
    paths = Records._paths

    def removed(records):
        found = paths(records)
        found["step_000001"].unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Records, "_paths", removed)
    (run,) = client.get("/api/runs").json()
    assert [each["name"] for each in run["files"]] == ["eval_000000"]
    monkeypatch.setattr(Records, "_paths", lambda records: {"step_000001": records.folder.root / "gone.jsonl.gz"})
    answer = get(client, "episodes", file="step_000001")
    assert (answer.status_code, answer.json()["detail"]) == (404, "there is no trajectory file 'step_000001'")


def test_other_hosts_are_refused(client):
    assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 400
    page = client.get("/")
    assert page.status_code == 200
    assert (
        "script-src" in page.headers["content-security-policy"]
        or "default-src 'self'" in page.headers["content-security-policy"]
    )


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a run folder"):
        Runs([tmp_path])
    with pytest.raises(UserError, match="no runs below"):
        newest(tmp_path)


def test_a_run_that_begins_below_a_shown_folder_appears(run_folder, tmp_path):
    run_folder("b/seed_0")
    client = client_of(tmp_path)

    def names():
        return [run["name"] for run in client.get("/api/runs").json()]

    assert names() == ["seed_0"]
    run_folder("a")
    assert names() == ["seed_0", "a"]
    assert get(client, "episode", run="a", file="step_000001", episode=0).status_code == 200
    run_folder("c/seed_0")
    assert names() == ["seed_0", "a", f"{tmp_path}/c/seed_0"]


def test_the_newest_run_is_taken(tmp_path):
    for age, name in enumerate(("b/seed_0", "a", "c")):
        RunFolder(tmp_path / name).make()
        (tmp_path / name / "config.yaml").touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert newest(tmp_path) == tmp_path / "b/seed_0"


def test_one_broken_config_does_not_hide_other_runs(folder, tmp_path):
    RunFolder(tmp_path / "broken").make()
    (tmp_path / "broken/config.yaml").write_text("{{{")
    client = client_of(folder.root, tmp_path / "broken")
    assert [(run["name"], run["steps"]) for run in client.get("/api/runs").json()] == [("run", 2), ("broken", None)]
    answer = get(client, "config", run="broken")
    assert answer.status_code == 422
    assert "broken/config.yaml is not valid YAML" in answer.json()["detail"]


def test_damaged_files_do_not_hide_other_runs(folder, run_folder):
    other = run_folder("damaged")
    with other.metrics_file.open("ab") as file:
        file.write(b'{"step": 2, "rew\n\0\0\n5\n{"step": 3}\n')
    written = other.trajectories / "step_000001.jsonl.gz"
    written.write_bytes(written.read_bytes()[:-20])
    client = client_of(folder.root, other.root)
    assert [(run["name"], run["last_step"], run["lines"]) for run in client.get("/api/runs").json()] == [
        ("run", 1, 2),
        ("damaged", 3, 3),
    ]
    answer = get(client, "episodes", run="damaged", file="step_000001")
    assert answer.status_code == 422
    assert "step_000001.jsonl.gz is incomplete or damaged" in answer.json()["detail"]


def test_a_line_that_is_not_a_trajectory_is_named(client, folder):
    file = folder.root / "trajectories.jsonl"
    for line, found in (("{}", "None"), ("5", "None"), ('{"format": 7}', "7")):
        file.write_text(f"{line}\n")
        answer = get(client, "episodes", file="trajectories")
        assert answer.status_code == 422
        assert f"{file}, line 1: This trajectory has format {found}; this version" in answer.json()["detail"]


def test_a_recipe_is_not_a_run(folder, tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/config.yaml").write_text("model: m")
    assert list(Runs([tmp_path])) == ["run"]
    with pytest.raises(UserError, match="recipe is not a run folder"):
        Runs([tmp_path / "recipe"])


def test_runs_have_the_shortest_names_that_differ(tmp_path):
    for name in ("a/seed_0", "a/seed_1", "b/seed_0"):
        RunFolder(tmp_path / name).make()
        (tmp_path / name / "config.yaml").touch()
    assert list(Runs([tmp_path / "a", tmp_path / "a/seed_1"])) == ["seed_0", "seed_1"]
    assert list(Runs([tmp_path])) == ["a/seed_0", "a/seed_1", "b/seed_0"]


def test_a_rollout_is_shown_too(tmp_path, trajectory_of):
    write_jsonl(tmp_path / "trajectories.jsonl", [trajectory_of("yes")], append=True)
    client = client_of(tmp_path)
    (run,) = client.get("/api/runs").json()
    assert (run["state"], run["lines"], [file["kind"] for file in run["files"]]) == ("rollout", 0, ["rollout"])
    assert get(client, "episodes", run=run["name"], file="trajectories").json()[0]["id"] == "1-0-0"


@pytest.mark.slow
def test_the_command_serves_and_ends_with_ctrl_c(folder):
    command = [Path(sys.executable).with_name("agentloop"), "view", str(folder.root), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        address = next(word for word in line.split() if word.startswith("http://"))
        for _ in range(200):  # the socket listens before the server answers
            try:
                with urllib.request.urlopen(f"{address}/api/runs") as reply:
                    assert json.load(reply)[0]["name"] == "run"
                break
            except ConnectionError:
                time.sleep(0.05)
        else:
            pytest.fail("no answer")
    finally:
        process.send_signal(signal.SIGINT)
    assert process.wait(30) in (0, 130)


@pytest.mark.slow
def test_a_taken_port_is_an_error(folder, capsys):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as ended:
            main(["view", str(folder.root), "--port", str(port), "--no-browser"])
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Cannot listen on 127.0.0.1, port {port}: another program listens there.")


@pytest.mark.slow
def test_the_axes_of_charts(tmp_path):
    """Check the arithmetic of the page with node."""
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for name in ("charts", "dom"):
        shutil.copy(PAGE / f"{name}.js", tmp_path)
    script = """
        import { ticks, smoothed } from "./charts.js";
        import { short } from "./dom.js";
        console.log(JSON.stringify([ticks(0, 1), ticks(-3, 117), ticks(5, 5), smoothed([1, 3, 5], 2), short(1e-5)]));
    """
    file = tmp_path / "axes.mjs"
    file.write_text(script)
    printed = subprocess.run(["node", str(file)], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == [[0, 0.2, 0.4, 0.6, 0.8, 1], [0, 50, 100], [5], [1, 2, 4], "1.0e-5"]
