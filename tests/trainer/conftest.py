"""Fixtures of a run of sums: a scripted model, a real tool, a learner that really learns. And a model for learners."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from tests.support.ranks import run_on_ranks as _run_on_ranks
from tests.support.tiny import save_tiny_qwen3 as _save_tiny_qwen3
from tests.support.warm import warm_ray as _warm_ray

_SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="session")
def run_on_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Call as run_on_ranks(ranks, script, *arguments)."""

    def run(ranks: int, script: Path, *arguments: object, timeout: float = 300.0) -> None:
        _run_on_ranks(ranks, script, *arguments, timeout=timeout, log=tmp_path_factory.mktemp("ranks") / "log")

    return run


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Call as tiny_qwen3(name=value, ...), with changes of the config: a folder of a saved model, only to be read."""
    made: dict[str, Path] = {}

    def folder(**changes: object) -> Path:
        key = repr(sorted(changes.items()))
        if key not in made:
            made[key] = _save_tiny_qwen3(tmp_path_factory.mktemp("tiny_qwen3"), **changes)
        return made[key]

    return folder


@pytest.fixture
def steady(sums):
    """The config of a run whose model samples the same on any worker; overrides as on the command line."""
    shutil.copy(_SUPPORT / "steady.py", sums / "steady.py")

    def config(*overrides):
        usual = [f"engine.options={{script: {sums}/steady.py:script}}", f"env.tools=[{sums}/steady.py:add]"]
        # On a busy machine a worker may be silent for long.
        usual += ["workers.hang_seconds=600", "workers.max_restarts=50", "workers.max_replays=50"]
        return load_config(RunConfig, sums / "config.yaml", [*usual, *overrides])

    return config


@pytest.fixture(scope="module")
def warm_ray():
    """Ray's processes start at once, as forks."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # this and the next as `connect` does
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    with _warm_ray():
        yield


@pytest.fixture(scope="module")
def ray(warm_ray):
    """Ray on this machine; workers use it and do not stop it."""
    import ray

    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")  # it ends workers when others fill the memory
    # GPUs are numbers to Ray: nothing uses them.
    ray.init(
        address="local", num_cpus=4, num_gpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    yield ray
    ray.shutdown()
