"""Batches that a teacher behind a service cannot score."""

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
