"""Fifteen typical mistakes: each ends with one paragraph that names the fix, and with exit code 2.

| mistake | tests |
|---|---|
| model path | `test_bad_input.test_missing_model_folder` |
| each extra | `registry/test_extras` |
| YAML | `test_broken_yaml` |
| unknown key | `test_bad_input.test_unknown_config_key` |
| misspelt tool | `test_bad_input.test_unknown_tool` |
| missing column | here, and before a run in `trainer/rehearsal/test_rehearsal` |
| reward None, text, NaN | here, and before a run in `trainer/rehearsal/test_rehearsal` |
| port in use | here, and of the daemon in `tools/serving/test_lifecycle` |
| full disk | here, and at each place that writes in `trainer/run/test_full_disk` |
| token | `test_a_wrong_token`, and of the daemon in `tools/serving/test_lifecycle` |
| engine | here |
| CUDA | here, and before a run in `trainer/rehearsal/test_rehearsal` |
| context too small, too large | here |
| no template | `test_bad_input.test_model_folder_without_chat_template` |
| two runs | `test_a_folder_in_use`, and the lock in `trainer/run/test_lock` |
"""

import gc
import resource
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch

from agentloop.cli import main
from agentloop.tools.serving.http.listening import listen
from agentloop.trainer.run.lock import locked

pytestmark = pytest.mark.slow

HF = "engine={name: hf, options: {device: cpu, max_model_len: 999999}}"
REWARDS = "\n".join(
    f"def {name}(trajectory, task):\n    return {value}"
    for name, value in {
        "column": "float(task['anser'])",
        "none": "None",
        "text": "'good'",
        "nan": "float('nan')",
    }.items()
)


@pytest.fixture
def refused(capsys, caplog):
    """Return a function that runs a command with a mistake, and returns its error, one paragraph."""

    def of(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        gc.collect()  # asyncio logs errors that nobody asked for when their tasks are collected
        shown = capsys.readouterr()
        assert ended.value.code == 2
        assert "Traceback" not in shown.err + shown.out + caplog.text
        assert "never retrieved" not in caplog.text
        # Progress bars of libraries also go to stderr; the error is the last line.
        return shown.err.strip().splitlines()[-1]

    return of


@pytest.fixture
def train(sums, refused):
    """Return a function that trains with a mistake, and returns its error."""
    (sums / "rewards.py").write_text(REWARDS)

    def of(*overrides):
        return refused("train", sums, f"run.folder={sums}/run", "run.loggers=[]", "eval.every=0", *overrides)

    return of


@pytest.mark.parametrize(
    ("reward", "cause"),
    [
        ("column", "KeyError: 'anser'"),
        ("none", "returned None as the reward: it must be a number"),
        ("text", "returned str 'good' as the reward: it must be a number"),
        ("nan", "nan"),
    ],
)
def test_rewards_that_judge_nothing(sums, train, reward, cause):
    error = train(f"env.reward={sums}/rewards.py:{reward}")
    assert cause in error
    assert "rewards.py" in error
    assert reward in error


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("engine.name=vlm", "Did you mean 'vllm'?"),
        ("learner.device=cuda", "Set learner.device=cpu or auto."),
        ("limits.max_tokens=8", "limits.max_tokens"),
        (HF, "lower it"),
    ],
    ids=["engine", "CUDA", "context too small", "context too large"],
)
def test_settings_that_cannot_work(train, monkeypatch, override, fix):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert fix in train(override)


def test_broken_yaml(sums, train):
    (sums / "config.yaml").write_text("model: ./model\ndata: {train: sums.py:tasks\n")
    error = train()
    assert f"{sums}/config.yaml" in error
    assert "line 3" in error


def test_a_folder_in_use(sums, train):
    (sums / "run").mkdir()
    with locked(sums / "run"):
        assert "stop it, or set run.folder to another folder." in train()


def test_a_full_disk(sums, train):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        error = train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.startswith("The disk at /")
    assert "is full" in error
    assert "Make room there" in error


def test_a_port_in_use(sums, refused):
    (sums / "run" / "trajectories").mkdir(parents=True)
    (sums / "run" / "config.yaml").write_text("model: nowhere\n")
    with listen("127.0.0.1", 0) as taken:
        error = refused("view", sums / "run", "--no-browser", "--port", taken.getsockname()[1])
    assert "another program listens there" in error
    assert "--port" in error


def test_a_wrong_token(refused, monkeypatch):
    class Daemon(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_error(401)

        do_GET = do_DELETE = do_POST

    monkeypatch.setenv("AGENTLOOP_TOKEN", "wrong")
    with HTTPServer(("127.0.0.1", 0), Daemon) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        sandbox = f"sandbox=http://127.0.0.1:{server.server_port}"
        error = refused("tools", "call", "code_interpreter", "code=print(1)", "--option", sandbox)
        server.shutdown()
        thread.join()
    assert "token" in error
    assert "AGENTLOOP_TOKEN" in error
