"""`agentloop view`: the page gets the files of the run, and other hosts get nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from agentloop.cli.view import newest
from agentloop.errors import UserError
from agentloop.recipes.tiny import task
from agentloop.rendering import renderer_for
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.viewer.app import PAGE, application
from agentloop.trainer.viewer.records import Records
from agentloop.trainer.viewer.stream import pieces_of
from agentloop.types.trajectory import SegmentKind, Trajectory
from agentloop.types.trajectory_io import write_jsonl

CHECKPOINT = Path(task.__file__).parent / "checkpoint"


@pytest.fixture(scope="module")
def renderer():
    return renderer_for(CHECKPOINT)


def trajectory_of(renderer, text, *, reward=1.0, image=None):
    trajectory = Trajectory(trajectory_id="1-0-0", group_id="1-0", reward=reward, stop_reason="completed")
    trajectory.append(SegmentKind.PROMPT, renderer.encode("question"), images=[image, image] if image else ())
    ids = renderer.encode(text)
    trajectory.append(
        SegmentKind.SAMPLED, ids, logprobs=[-0.5 * i for i in range(len(ids))], versions=[3] * (len(ids) - 1) + [4]
    )
    trajectory.append(SegmentKind.OBSERVATION, renderer.encode("seen"))
    return trajectory


@pytest.fixture
def folder(tmp_path, renderer):
    folder = RunFolder(tmp_path / "run")
    folder.make()
    folder.write_config({"model": str(CHECKPOINT), "run": {"steps": 2}})
    folder.append_metrics({"step": 0, "eval/reward/mean": 0.25})
    folder.append_metrics({"step": 1, "reward/mean": 0.5})
    image = Image.new("RGB", (4, 3), "red")
    folder.write_trajectories("step_000001", [trajectory_of(renderer, "dé 漢字!", image=image)])
    folder.write_trajectories("eval_000000", [trajectory_of(renderer, "no", reward=0.0)] * 2)
    return folder


@pytest.fixture
def client(folder):
    return TestClient(application(Records(folder.root)), base_url="http://localhost")


def test_a_run_with_its_metrics_and_files(client, folder):
    run = client.get("/api/run").json()
    assert (run["name"], run["over"], run["config"]["run"]) == ("run", False, {"steps": 2})
    assert client.get("/api/metrics").json() == [
        {"step": 0, "eval/reward/mean": 0.25},
        {"step": 1, "reward/mean": 0.5},
    ]
    assert [(each["name"], each["kind"], each["step"]) for each in client.get("/api/files").json()] == [
        ("eval_000000.jsonl.gz", "eval", 0),
        ("step_000001.jsonl.gz", "train", 1),
    ]


def test_new_steps_come_alone_and_without_an_incomplete_line(client, folder):
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 2, "reward/mean": 0.7')
    assert client.get("/api/metrics?since=1").json() == [{"step": 1, "reward/mean": 0.5}]
    with folder.metrics_file.open("a") as file:
        file.write("5}\n")
    assert client.get("/api/metrics?since=2").json() == [{"step": 2, "reward/mean": 0.75}]


def test_a_trajectory_comes_in_pieces_with_logprobs_and_versions(client, renderer):
    (row,) = client.get("/api/files/step_000001.jsonl.gz").json()
    assert (row["reward"], row["turns"], row["images"], row["versions"]) == (1.0, 1, 1, [3, 4])
    shown = client.get("/api/files/step_000001.jsonl.gz/0").json()
    prompt, sampled, observation = shown["segments"]
    assert (prompt["text"], prompt["images"], observation["text"]) == ("question", [0, 0], "seen")
    assert "".join(sampled["pieces"]) == "dé 漢字!"
    ids = renderer.encode("dé 漢字!")
    assert [token for piece in sampled["ids"] for token in piece] == ids
    assert sum(sampled["logprobs"]) == pytest.approx(sum(-0.5 * i for i in range(len(ids))))
    assert len(sampled["pieces"]) == len(sampled["logprobs"]) == len(sampled["versions"]) < len(ids)
    assert len(shown["images"]) == 1


def test_first_requests_at_once_load_the_model_once(folder, renderer, monkeypatch):
    """Imports and loading of transformers fail in two threads at once."""
    loaded = []

    def load(path):
        loaded.append(path)
        time.sleep(0.3)
        return renderer

    monkeypatch.setattr("agentloop.rendering.renderer_for", load)
    client = TestClient(application(Records(folder.root)), base_url="http://localhost")
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(client.get, ["/api/files/step_000001.jsonl.gz/0"] * 4))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len(loaded) == 1


def test_characters_of_several_tokens_are_one_piece():
    table = {1: b"a", 2: b"\xe6", 3: b"\xbc", 4: b"\xa2", 5: b"\xff"}

    def decode(ids):
        return b"".join(table[i] for i in ids).decode(errors="replace")

    assert pieces_of([1, 2, 3, 4, 1], decode) == [("a", 1), ("漢", 3), ("a", 1)]
    assert pieces_of([1, 2], decode) == [("a", 1), ("\N{REPLACEMENT CHARACTER}", 1)]  # an incomplete character
    assert sum(count for _, count in pieces_of([5] * 40, decode)) == 40


def test_without_the_tokenizer_the_ids_are_shown(folder):
    folder.write_config({"model": "/gone"})
    client = TestClient(application(Records(folder.root)), base_url="http://localhost")
    shown = client.get("/api/files/eval_000000.jsonl.gz/1").json()
    assert shown["segments"][1]["pieces"] == [f"‹{token}›" for token in shown["segments"][1]["ids"][0]] + [
        f"‹{ids[0]}›" for ids in shown["segments"][1]["ids"][1:]
    ]


def test_a_trajectory_says_whether_it_was_trained_on(client, folder, renderer):
    write_jsonl(folder.root / "trajectories.jsonl", [trajectory_of(renderer, "yes")], append=True)
    kinds = {
        each["name"]: client.get(f"/api/files/{each['name']}/0").json()["file_kind"]
        for each in client.get("/api/files").json()
    }
    assert kinds == {"eval_000000.jsonl.gz": "eval", "step_000001.jsonl.gz": "train", "trajectories.jsonl": "rollout"}
    script = (PAGE / "view.js").read_text()
    [line] = [line for line in script.splitlines() if line.startswith("const LEARNED = ")]
    assert all(f"{kind}: " in line for kind in kinds.values())  # the page has a label for each kind


@pytest.mark.parametrize(
    "path",
    ["/api/files/step_000009.jsonl.gz", "/api/files/eval_000000.jsonl.gz/2", "/api/files/config.yaml", "/api/no"],
)
def test_missing_files_are_404(client, path):
    assert client.get(path).status_code == 404


def test_other_hosts_are_refused(client):
    assert client.get("/api/run", headers={"host": "evil.example"}).status_code == 400
    page = client.get("/")
    assert page.status_code == 200
    assert (
        "script-src" in page.headers["content-security-policy"]
        or "default-src 'self'" in page.headers["content-security-policy"]
    )


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a run folder"):
        Records(tmp_path)
    with pytest.raises(UserError, match="no runs below"):
        newest(tmp_path)


def test_the_newest_run_is_taken(tmp_path):
    for age, name in enumerate(("b/seed_0", "a", "c")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert newest(tmp_path) == tmp_path / "b/seed_0"


def test_a_rollout_is_shown_too(tmp_path, renderer):
    write_jsonl(tmp_path / "trajectories.jsonl", [trajectory_of(renderer, "yes")], append=True)
    client = TestClient(application(Records(tmp_path)), base_url="http://localhost")
    assert client.get("/api/metrics").json() == []
    (file,) = client.get("/api/files").json()
    assert (file["name"], file["kind"]) == ("trajectories.jsonl", "rollout")
    assert client.get("/api/files/trajectories.jsonl").json()[0]["id"] == "1-0-0"


@pytest.mark.slow
def test_the_command_serves_and_ends_with_ctrl_c(folder):
    command = [Path(sys.executable).with_name("agentloop"), "view", str(folder.root), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        address = next(word for word in line.split() if word.startswith("http://"))
        for _ in range(200):  # the socket listens before the server answers
            try:
                with urllib.request.urlopen(f"{address}/api/run") as reply:
                    assert json.load(reply)["name"] == "run"
                break
            except ConnectionError:
                time.sleep(0.05)
        else:
            pytest.fail("no answer")
    finally:
        process.send_signal(signal.SIGINT)
    assert process.wait(30) in (0, 130)


@pytest.mark.slow
def test_the_axes_of_charts(tmp_path):
    """Check the arithmetic of the page with node."""
    shutil.copy(PAGE / "charts.js", tmp_path / "charts.mjs")  # node 18 needs this suffix for a module
    script = """
        import { ticks, smoothed, short } from "./charts.mjs";
        console.log(JSON.stringify([ticks(0, 1), ticks(-3, 117), ticks(5, 5), smoothed([1, 3, 5], 2), short(1e-5)]));
    """
    file = tmp_path / "axes.mjs"
    file.write_text(script)
    printed = subprocess.run(["node", str(file)], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == [[0, 0.5, 1], [0, 50, 100], [5], [1, 2, 4], "1.0e-5"]
