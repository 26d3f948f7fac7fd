import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.model.row_layout import RowLayout, Unit, shared_tokens, units


def _sample(ids: list[int], trained: list[int], group: str = "") -> Sample:
    mask = np.isin(np.arange(len(ids)), trained)
    logprobs = np.where(mask, -1.0, 0.0).astype(np.float32)
    return Sample(np.array(ids, np.int32), mask, logprobs, np.where(mask, 0, -1).astype(np.int32), group_id=group)


def test_shared_prompt_appears_once_in_the_row():
    first = _sample([1, 2, 3, 10, 11], [3, 4], "a")
    second = _sample([1, 2, 3, 20], [3], "a")
    alone = _sample([7, 8, 9], [2])
    layout = RowLayout.of([first, second, alone], [Unit([0, 1], 3, 6), Unit([2], 0, 3)])
    assert layout.token_ids.tolist() == [1, 2, 3, 10, 11, 20, 7, 8, 9]
    assert (layout.lengths, layout.parents) == ([3, 2, 1, 3], [None, 0, 0, None])
    assert layout.positions.tolist() == [2, 3, 2, 7]


def test_sequences_are_concatenated_without_sharing():
    samples = [_sample([1, 2, 3], [2], "a"), _sample([1, 2, 4], [1, 2], "a")]
    layout = RowLayout.of(samples)
    assert layout.token_ids.tolist() == [1, 2, 3, 1, 2, 4]
    assert (layout.lengths, layout.parents) == ([3, 3], [None, None])
    assert layout.positions.tolist() == [1, 3, 4]


def test_equal_trained_tokens_are_not_shared():
    assert shared_tokens([_sample([1, 2, 3, 4], [2, 3]), _sample([1, 2, 3, 4], [2, 3])]) == 2
    assert shared_tokens([_sample([1, 2, 3, 4], [3]), _sample([1, 9, 3, 4], [3])]) == 1
    assert shared_tokens([_sample([1, 2], [1])]) == 0


def test_small_savings_do_not_trigger_sharing():
    long = [_sample([1, *range(100 * i, 100 * i + 50)], [50], "a") for i in (1, 2)]
    assert units(long, [0, 1], 1000, share=True) == [Unit([0], 0, 51), Unit([1], 0, 51)]


def test_groups_stay_together_within_the_token_budget():
    samples = [_sample([1, 2, 3, 4, 5, 6], [5], group) for group in ("a", "b", "a", "a", "a", "")]
    assert units(samples, list(range(6)), 8, share=True) == [
        Unit([5], 0, 6),
        Unit([0, 2, 3], 5, 8),
        Unit([4], 0, 6),
        Unit([1], 0, 6),
    ]
    assert units(samples, [2, 0], 8, share=False) == [Unit([2], 0, 6), Unit([0], 0, 6)]


@st.composite
def _samples(draw: st.DrawFn) -> list[Sample]:
    samples = []
    for group in draw(st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=4)):
        prompt = draw(st.lists(st.integers(0, 3), min_size=1, max_size=20))
        for _ in range(draw(st.integers(1, 4))):
            answer = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
            trained = [len(prompt) + i for i in range(len(answer)) if i == 0 or draw(st.booleans())]
            samples.append(_sample(prompt + answer, trained, group))
    return samples


@settings(deadline=None)
@given(_samples(), st.integers(26, 60))
def test_every_trained_token_is_predicted_from_its_own_history(samples: list[Sample], budget: int):
    parts = units(samples, list(range(len(samples))), budget, share=True)
    ordered = [index for part in parts for index in part.indices]
    assert sorted(ordered) == list(range(len(samples)))
    assert all(part.num_tokens <= budget for part in parts)
    layout = RowLayout.of([samples[index] for index in ordered], parts)
    assert sum(part.num_tokens for part in parts) == len(layout.token_ids)
    assert sum(layout.lengths) == len(layout.token_ids)
    starts = np.concatenate([[0], np.cumsum(layout.lengths)])
    positions = iter(layout.positions.tolist())
    for sample in (samples[index] for index in ordered):
        for token in np.flatnonzero(sample.loss_mask):
            position = next(positions)
            segment = int(np.searchsorted(starts, position, side="right")) - 1
            history = layout.token_ids[starts[segment] : position + 1].tolist()
            parent = layout.parents[segment]
            if parent is not None:
                history = layout.token_ids[starts[parent] : starts[parent + 1]].tolist() + history
            assert history == sample.token_ids[:token].tolist()
