"""The token stream: lengths agree, a failing append changes nothing, growth is cheap."""

import sys
from array import array
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.types.trajectory import NO_VERSION, Segment, SegmentKind, Trajectory

CONTEXT = [SegmentKind.PROMPT, SegmentKind.OBSERVATION, SegmentKind.TEMPLATE]


def small():
    trajectory = Trajectory()
    trajectory.append(SegmentKind.PROMPT, [1, 2, 3], images=["picture"])
    trajectory.append(SegmentKind.SAMPLED, array("i", [4, 5]), logprobs=[-0.5, -1.5], versions=[7, 8])
    trajectory.append(SegmentKind.TEMPLATE, [6])
    trajectory.append(SegmentKind.OBSERVATION, [9, 9], images=["second"])
    return trajectory


def test_arrays_follow_from_the_segments():
    trajectory = small()
    assert trajectory.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 9, 9]
    assert trajectory.loss_mask.tolist() == [False, False, False, True, True, False, False, False]
    assert trajectory.logprobs.tolist() == [0, 0, 0, -0.5, -1.5, 0, 0, 0]
    assert trajectory.versions.tolist() == [-1, -1, -1, 7, 8, -1, -1, -1]
    assert trajectory.segments[1] == Segment(SegmentKind.SAMPLED, 3, 5)
    assert trajectory.images == ["picture", "second"]
    assert (len(trajectory), trajectory.num_sampled, trajectory.num_turns) == (8, 2, 1)


segments = st.lists(
    st.tuples(st.sampled_from(SegmentKind), st.lists(st.integers(0, 2**31 - 1), max_size=5), st.integers(0, 3)),
    max_size=12,
)


@given(segments)
def test_only_sampled_tokens_have_loss_logprobs_and_versions(parts):
    trajectory = Trajectory()
    for kind, ids, version in parts:
        if kind is SegmentKind.SAMPLED:
            trajectory.append(kind, ids, logprobs=[-1.0] * len(ids), versions=[version] * len(ids))
        else:
            trajectory.append(kind, ids)
    flat = [(token, kind is SegmentKind.SAMPLED, version) for kind, ids, version in parts for token in ids]
    assert trajectory.token_ids.tolist() == [token for token, _, _ in flat]
    assert trajectory.loss_mask.tolist() == [sampled for _, sampled, _ in flat]
    assert trajectory.logprobs.tolist() == [-1.0 if sampled else 0.0 for _, sampled, _ in flat]
    assert trajectory.versions.tolist() == [version if sampled else NO_VERSION for _, sampled, version in flat]
    ends = [segment.end for segment in trajectory.segments]
    assert [segment.start for segment in trajectory.segments] == [0, *ends][: len(ends)]
    assert [*ends, 0][-2 if ends else -1] == len(trajectory)


def failing_images():
    yield "first"
    raise ValueError("cannot be read")


@pytest.mark.parametrize(
    ("kind", "ids", "extra"),
    [
        (SegmentKind.SAMPLED, [1, 2], {}),
        (SegmentKind.SAMPLED, [1, 2], {"logprobs": [-1.0, -1.0]}),
        (SegmentKind.SAMPLED, [1, 2], {"logprobs": [-1.0], "versions": [0, 0]}),
        (SegmentKind.SAMPLED, [1, 2], {"logprobs": [-1.0, -1.0], "versions": [0]}),
        (SegmentKind.SAMPLED, [1, 2], {"logprobs": [-1.0, "x"], "versions": [0, 0]}),
        (SegmentKind.SAMPLED, [1, 2], {"logprobs": [-1.0, -1.0], "versions": [0, 2**31]}),
        (SegmentKind.SAMPLED, [1, 2.5], {"logprobs": [-1.0, -1.0], "versions": [0, 0]}),
        (SegmentKind.SAMPLED, [1], {"logprobs": [-1.0], "versions": [0], "images": failing_images()}),
        (SegmentKind.OBSERVATION, [1, 2], {"logprobs": [0.0, 0.0]}),
        (SegmentKind.OBSERVATION, [1, 2], {"versions": [0, 0]}),
        (SegmentKind.OBSERVATION, [1, 2**31], {}),
        (SegmentKind.OBSERVATION, [1, None], {}),
        (SegmentKind.OBSERVATION, [1], {"images": failing_images()}),
    ],
)
def test_a_failing_append_changes_nothing(kind, ids, extra):
    trajectory, before = small(), small()
    with pytest.raises(ValueError):  # noqa: PT011 - each case words it differently
        trajectory.append(kind, ids, **extra)
    assert trajectory == before
    assert list(trajectory.ids) == list(before.ids)
    assert trajectory.versions.tolist() == before.versions.tolist()


def test_an_append_while_the_ids_are_exported_changes_nothing():
    trajectory = small()
    with memoryview(trajectory.ids), pytest.raises(BufferError):
        trajectory.append(SegmentKind.OBSERVATION, [1])
    assert trajectory == small()
    trajectory.append(SegmentKind.OBSERVATION, [1])
    assert len(trajectory) == 9


def test_an_empty_segment_is_left_out_and_one_with_an_image_is_kept():
    trajectory = Trajectory()
    trajectory.append(SegmentKind.TEMPLATE, [])
    assert trajectory.segments == []
    trajectory.append(SegmentKind.OBSERVATION, [], images=["picture"])
    assert trajectory.segments == [Segment(SegmentKind.OBSERVATION, 0, 0, ("picture",))]


def test_at_most_16_bytes_a_token_and_few_reallocations():
    """100,000 tokens, 10 at a time: the buffers grow in proportion, so that all copying together is linear."""
    trajectory = Trajectory()
    values = [getattr(trajectory, field.name) for field in fields(trajectory)]
    buffers = [value for value in values if isinstance(value, array)]
    sizes: set[tuple[int, ...]] = set()
    for turn in range(5_000):
        trajectory.append(SegmentKind.SAMPLED, [turn] * 10, logprobs=[-1.0] * 10, versions=[turn] * 10)
        trajectory.append(SegmentKind.OBSERVATION, [turn] * 10)
        sizes.add(tuple(map(sys.getsizeof, buffers)))
    assert len(trajectory) == 100_000
    assert sum(map(sys.getsizeof, buffers)) <= 16 * len(trajectory)
    assert len(sizes) < 250  # of 10,000 appends


def test_final_text_and_failures():
    trajectory = Trajectory(messages=[{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}])
    assert trajectory.final_text == "a"
    assert Trajectory().final_text == ""
    trajectory.count("model")
    trajectory.count("model")
    assert trajectory.failures == {"model": 2}
