import os

import pytest

from agentloop.trainer.cluster import rank_processes


@pytest.mark.parametrize(("ranks", "nodes", "fix"), [(3, 1, "learner.ranks=2"), (6, 2, "learner.ranks=4"), (4, 2, "")])
def test_more_ranks_than_cores_are_warned_of(monkeypatch, caplog, ranks: int, nodes: int, fix: str):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    rank_processes._check(ranks, "cpu", nodes)
    assert (f"learner.ranks is {ranks} on {nodes} nodes" in caplog.text) == bool(fix)
    assert fix in caplog.text
