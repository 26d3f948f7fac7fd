"""A teacher behind a service: batches that it cannot score, and requests that it delays."""

import time

import httpx
import numpy as np
import pytest

from agentloop.errors import UserError
from agentloop.trainer.batch.distillation import TeacherEndpoint
from agentloop.trainer.batch.train_batch import Sample
from agentloop.types.grammar import ConstrainedTurn, Grammar


def test_a_turn_with_a_grammar_is_refused_before_any_request():
    mask = np.array([False, True])
    turn = ConstrainedTurn(1, 2, Grammar("{}", (3,)))
    sample = Sample(np.zeros(2, np.int32), mask, np.zeros(2, np.float32), np.zeros(2, np.int32), constrained=(turn,))
    with pytest.raises(UserError, match="scores without it"):
        TeacherEndpoint("http://127.0.0.1:1/v1", "teacher")([sample])


def test_a_busy_service_is_left_alone_for_as_long_as_it_requests(monkeypatch):
    answers = [httpx.Response(429, headers={"retry-after": "7"}), httpx.Response(200, json={"data": [{"id": "x"}]})]
    teacher = TeacherEndpoint("http://127.0.0.1:1/v1", pause=0.0)
    teacher._client = httpx.Client(transport=httpx.MockTransport(lambda request: answers.pop(0)))
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert teacher([]) == []
    assert pauses == [7.0]
