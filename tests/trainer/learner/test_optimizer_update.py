"""Learning rates, and the log message for a skipped update."""

import numpy as np

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.learner.optimizer_update import describe_skipped, learning_rate


def _sample(name: str) -> Sample:
    zeros = np.zeros(2, np.int32)
    return Sample(zeros, np.array([False, True]), zeros.astype(np.float32), zeros, trajectory_id=name)


_SAMPLES = [_sample("a"), _sample("b"), _sample(""), _sample("d")]


def test_learning_rates_by_hand():
    def rates(**options: object) -> list[float]:
        config = LearnerConfig(model="", lr=1.0, **options)  # type: ignore[arg-type]
        return [round(learning_rate(config, update), 6) for update in range(6)]

    assert rates() == [1.0] * 6
    assert rates(warmup_updates=3) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert rates(lr_schedule="linear", warmup_updates=1, total_updates=5) == [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert rates(lr_schedule="cosine", total_updates=4) == [1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0]


def test_a_loss_that_is_not_finite_names_only_its_micro_batch():
    text = describe_skipped(_SAMPLES, [[0, 2], [1, 3]], [float("nan"), 0.5], float("nan"))
    assert "(their loss is not finite): a, sample 2." in text


def test_a_gradient_that_is_not_finite_names_all_micro_batches():
    text = describe_skipped(_SAMPLES, [[3], [0, 1]], [0.1, 0.5], float("inf"))
    assert "(every loss is finite, but the gradient norm is inf): a, b, d." in text


def test_long_lists_are_cut_and_a_rank_without_work_names_none():
    many = [_sample(f"t{number}") for number in range(20)]
    assert describe_skipped(many, [list(range(20))], [float("inf")], 1.0).endswith("t15 and 4 more.")
    assert describe_skipped(many, [[]], [0.0], float("nan")).endswith("none.")
