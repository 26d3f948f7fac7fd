"""The run, the sandbox daemon, Ray's workers and its head are killed at random moments; no episode is lost or counted
twice. benchmarks/runs/chaos.py describes kills and checks, and runs for longer.
"""

import random

import pytest

from benchmarks.runs.chaos import Driver, torment
from tests.support.warm import start

pytestmark = pytest.mark.slow


class WarmDriver(Driver):
    """A driver whose Ray starts at once, too."""

    def start(self) -> None:
        self.process = start(self.arguments, self.folder.root.with_name("output"))


@pytest.mark.parametrize("mode", ["stream", "stale", "partial"])
def test_an_asynchronous_run_whose_parts_are_killed_trains_every_episode_once(tmp_path, mode):
    chance = random.Random()
    parts = chance.sample(["run", "daemon"], 2)
    found = torment(
        tmp_path, mode=mode, workers="local", steps=6, parts=parts, rng=chance, pause=0.2, make_driver=WarmDriver
    )
    assert found["kills"] == {"run": 1, "daemon": 1}
    assert found["starts"] == 2
    assert found["episodes_failed"] == 0


def test_a_run_survives_its_workers_and_goes_on_after_the_end_of_rays_head(tmp_path):
    parts = ["worker", "head"]
    found = torment(
        tmp_path,
        mode="partial",
        workers="ray",
        steps=6,
        parts=parts,
        rng=random.Random(),
        pause=0.2,
        make_driver=WarmDriver,
    )
    assert found["kills"] == {"worker": 1, "head": 1}
    assert found["episodes_failed"] == 0
