"""Boxes: the table of verl's tool, and what holds for any box."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.tools.vision.boxes import to_seen, to_source
from agentloop.tools.vision.zoom import resolve_box

numbers = st.one_of(
    st.floats(-2000, 2000),
    st.integers(-2000, 2000),
    st.sampled_from([math.nan, math.inf, -math.inf, 10**400, -0.0, 1e-300]),
)
anything = st.one_of(
    st.lists(numbers, min_size=4, max_size=4),
    st.lists(st.one_of(numbers, st.text(), st.none(), st.booleans()), max_size=6),
    st.text(),
    st.none(),
    st.integers(),
    st.dictionaries(st.text(), numbers),
)
sides = st.integers(1, 5000)


@pytest.mark.parametrize(
    ("bbox", "expected"),
    [
        ([100, 100, 200, 200], (100.0, 100.0, 200.0, 200.0)),
        ([10, 10, 20, 20], (1, 1, 29, 29)),
        ([0, 0, 10, 20], (0, 0, 28, 56)),
        ([-50, -50, 100, 100], (0.0, 0.0, 100.0, 100.0)),
        ([10.5, 10.5, 38.4, 38.4], (10, 10, 39, 39)),
        ([200, 100, 100, 200], None),
        ([100, 100, 100, 200], None),
        ([700, 100, 800, 200], None),
        ([300, 200, 310, 400], None),
        ([1, 1, 101, 2], None),
        ([1, 1, 102, 2], None),
    ],
)
def test_boxes_match_the_verl_table(bbox, expected):
    assert resolve_box(bbox, 640, 480, policy="verl") == expected


@pytest.mark.parametrize("policy", ["kind", "verl"])
@pytest.mark.parametrize(
    "bbox",
    [
        None,
        "10,10,20,20",
        [],
        [1, 2, 3],
        [1, 2, 3, 4, 5],
        ["1", "2", "3", "4"],
        [None, 0, 10, 10],
        [True, 0, 100, 100],
        [[0, 0], [9, 9], 3, 4],
        {"x1": 0},
        [math.nan, 0, 100, 100],
        [0, 0, math.nan, 100],
        [0, 0, math.inf, 100],
        [-math.inf, 0, 100, 100],
        [0, 0, 10**400, 100],
    ],
)
def test_invalid_boxes_are_rejected(bbox, policy):
    assert resolve_box(bbox, 640, 480, policy=policy) is None


@pytest.mark.parametrize(
    ("bbox", "expected"),
    [
        ([300, 200, 310, 400], (291, 200, 319, 400)),
        ([1, 1, 101, 2], (1, 0, 101, 28)),
        ([630, 470, 640, 480], (612, 452, 640, 480)),
        ([0.5, 0.5, 60.5, 60.5], (0, 0, 61, 61)),
    ],
)
def test_lenient_policy_extends_the_short_side(bbox, expected):
    assert resolve_box(bbox, 640, 480) == expected


@given(anything, sides, sides, st.sampled_from(["kind", "verl"]))
def test_box_lies_in_the_image_or_is_rejected(bbox, width, height, policy):
    box = resolve_box(bbox, width, height, policy=policy)
    if box is None:
        return
    left, top, right, bottom = box
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert right - left >= min(28, width)
    assert bottom - top >= min(28, height)


@given(st.tuples(numbers, numbers, numbers, numbers), st.integers(28, 5000), st.integers(28, 5000))
def test_boxes_accepted_by_verl_are_accepted_leniently(bbox, width, height):
    if resolve_box(bbox, width, height, policy="verl") is not None:
        assert resolve_box(bbox, width, height, policy="kind") is not None


@given(
    st.integers(1, 4000), st.integers(1, 4000), st.integers(1, 12), st.integers(1, 12), st.data()
)  # a source that is a multiple of what was seen
def test_integer_multiples_map_exactly(width, height, times_x, times_y, data):
    left = data.draw(st.integers(0, width - 1))
    top = data.draw(st.integers(0, height - 1))
    right = data.draw(st.integers(left + 1, width))
    bottom = data.draw(st.integers(top + 1, height))
    source = (width * times_x, height * times_y)
    mapped = to_source((left, top, right, bottom), (width, height), source)
    assert mapped == (left * times_x, top * times_y, right * times_x, bottom * times_y)


@given(sides, sides, sides, sides, st.data())
def test_mapped_box_covers_exactly_the_region(width, height, source_width, source_height, data):
    left = data.draw(st.floats(0, width - 0.5))
    right = data.draw(st.floats(left + 0.25, width))
    x1, _, x2, _ = to_source((left, 0, right, height), (width, height), (source_width, source_height))
    scale = source_width / width
    assert 0 <= x1 < x2 <= source_width
    assert x1 <= left * scale + 1e-5 or x1 == source_width - 1
    assert x2 >= right * scale - 1e-5
    assert x1 > left * scale - 1 - 1e-5
    assert x2 < right * scale + 1 + 1e-5


def test_coordinate_frames_are_converted():
    seen, source = (1120, 840), (4000, 3000)
    assert to_seen([560, 420, 1120, 840], "pixel_seen", seen, source) == [560, 420, 1120, 840]
    assert to_seen([500, 500, 1000, 1000], "norm1000", seen, source) == [560, 420, 1120, 840]
    assert to_seen([2000, 1500, 4000, 3000], "pixel_source", seen, source) == [560, 420, 1120, 840]
    assert to_seen("nonsense", "norm1000", seen, source) == "nonsense"
