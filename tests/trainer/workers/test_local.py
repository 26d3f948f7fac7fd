"""`LocalWorkers`: agent loops and the engine in the process of the run."""

import contextlib
import sys
from types import SimpleNamespace

import pytest

from agentloop.trainer.workers import local


async def test_threads_take_turns_quickly_while_the_workers_run(monkeypatch):
    monkeypatch.setattr(local, "started", lambda engine, episodes: contextlib.nullcontext())
    workers = local.LocalWorkers(SimpleNamespace(worker=lambda engine: None), None)
    before = sys.getswitchinterval()
    await workers.start()
    assert sys.getswitchinterval() == pytest.approx(0.0005)
    await workers.close()
    assert sys.getswitchinterval() == before
