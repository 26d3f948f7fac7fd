"""A folder with a scripted run for workers, and Ray for a whole test module."""

import os
import shutil
from pathlib import Path

import pytest

from agentloop.config_loading import load_config
from agentloop.trainer.run_config import RunConfig

_HERE = Path(__file__).parent


@pytest.fixture
def steady(sums):
    """The config of a run whose model says the same on any worker; overrides as on the command line."""
    shutil.copy(_HERE / "steady.py", sums / "steady.py")

    def config(*overrides):
        usual = [f"engine.options={{script: {sums}/steady.py:script}}", f"env.tools=[{sums}/steady.py:add]"]
        # On a machine with much else to do a worker may be silent for long.
        usual += ["workers.hang_seconds=600", "workers.max_restarts=50", "workers.max_replays=50"]
        return load_config(RunConfig, sums / "config.yaml", [*usual, *overrides])

    return config


@pytest.fixture(scope="module")
def ray():
    """Ray on this machine; workers find it running and leave it so."""
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")  # as `connect` does
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")  # it ends workers when others fill the memory
    # GPUs are numbers to Ray: nothing uses them.
    ray.init(
        address="local", num_cpus=4, num_gpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    yield ray
    ray.shutdown()
