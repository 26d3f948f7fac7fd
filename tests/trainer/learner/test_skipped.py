import numpy as np

from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.learner.skipped import describe


def sample(name: str) -> Sample:
    zeros = np.zeros(2, np.int32)
    return Sample(zeros, np.array([False, True]), zeros.astype(np.float32), zeros, trajectory_id=name)


SAMPLES = [sample("a"), sample("b"), sample(""), sample("d")]


def test_a_loss_that_is_not_finite_names_its_micro_batch_only():
    text = describe(SAMPLES, [[0, 2], [1, 3]], [float("nan"), 0.5], float("nan"))
    assert "(their loss is not finite): a, sample 2." in text


def test_a_gradient_that_is_not_finite_may_be_of_any():
    text = describe(SAMPLES, [[3], [0, 1]], [0.1, 0.5], float("inf"))
    assert "(gradient norm inf, no loss of a micro-batch is to blame): a, b, d." in text


def test_long_lists_are_cut_and_a_rank_without_work_has_none():
    many = [sample(f"t{number}") for number in range(20)]
    assert describe(many, [list(range(20))], [float("inf")], 1.0).endswith("t15 and 4 more.")
    assert describe(many, [[]], [0.0], float("nan")).endswith("none.")
