import json

import numpy as np
import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.registry.registry import Registry
from agentloop.trainer import advantages
from agentloop.trainer.run.checks import check_trainable
from tests.support.installed import install

_FILE = """
from agentloop.trainer import advantages

@advantages.register("best_of_{name}")
def best_of_{name}(rewards):
    return (rewards == rewards.max()) - 0.5

def unregistered(rewards):
    return rewards
"""


def test_a_file_brings_its_own_advantage(tmp_path):
    (tmp_path / "mine.py").write_text(_FILE.format(name="three"))
    spec = f"{tmp_path}/mine.py:best_of_three"
    np.testing.assert_allclose(advantages.group_advantages([1.0, 0.0, 1.0], spec), [0.5, -0.5, 0.5])
    # Loaded once, whoever asks.
    assert advantages.get(spec) is advantages.get("best_of_three")


def test_a_name_that_a_file_does_not_register_is_reported(tmp_path):
    (tmp_path / "mine.py").write_text(_FILE.format(name="four"))
    with pytest.raises(UserError, match="no advantage 'unregistered'"):
        advantages.get(f"{tmp_path}/mine.py:unregistered")
    with pytest.raises(UserError, match="There is no file"):
        advantages.get(f"{tmp_path}/yours.py:best")


def test_a_name_of_two_packages_is_refused_because_one_would_hide_the_other(tmp_path, monkeypatch):
    install(tmp_path, "agentloop.examples", jump="json:loads", walk="json:dumps", run="json:loads")
    entries = {"jump": "json:dumps", "walk": "json:dumps"}
    registry = Registry("example", "env.example", entries, group="agentloop.examples")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"Several packages register the example 'jump': example \(json:loads\), agent"):
        registry.get("jump")
    assert registry.get("walk") is json.dumps  # both name the same object
    assert registry.get("run") is json.loads
    assert registry.get("json:loads") is json.loads


def test_a_package_that_exits_when_it_is_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "leaving.py").write_text("raise SystemExit(0)\n")
    install(tmp_path, "agentloop.examples", leave="leaving:X")
    registry = Registry("example", "env.example", group="agentloop.examples")
    monkeypatch.syspath_prepend(tmp_path)
    for spec in ("leave", "leaving:X"):
        with pytest.raises(UserError, match=r"fails to import: SystemExit: 0 \(leaving.py, line 1\)"):
            registry.get(spec)


def test_paths_in_a_config_start_at_its_folder(tmp_path):
    (tmp_path / "mine.py").write_text(_FILE.format(name="five"))
    (tmp_path / "config.yaml").write_text(
        "model: org/model\ndata: {train: t.jsonl}\nenv: {reward: exact}\n"
        "algorithm: {advantage: mine.py:best_of_five}\n"
        "learner: {loss: mine.py:loss, reference: ./reference, corrections: [mine.py:x, {name: mine.py:y}]}\n"
        "critic: {model: ./critic}\n"
    )
    config = load_config(RunConfig, tmp_path / "config.yaml")
    assert config.algorithm.advantage == f"{tmp_path}/mine.py:best_of_five"
    assert config.learner.loss == f"{tmp_path}/mine.py:loss"
    assert [part.name for part in config.learner.corrections] == [f"{tmp_path}/mine.py:x", f"{tmp_path}/mine.py:y"]
    assert (config.learner.reference, config.critic.model) == (f"{tmp_path}/reference", f"{tmp_path}/critic")
    with pytest.raises(UserError, match="has no 'loss' to use as loss"):
        check_trainable(config)
