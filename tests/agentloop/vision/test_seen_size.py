import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentloop.errors import UserError
from agentloop.vision.seen_size import SmartResize

pytestmark = pytest.mark.slow


@settings(deadline=None)
@given(st.integers(1, 9000), st.integers(1, 9000), st.sampled_from([28, 32]))
@example(19, 19, 28)
def test_seen_size_matches_transformers(width, height, factor):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    resize = SmartResize(factor, 56 * 56, factor * factor * 1280)
    try:
        expected = smart_resize(height, width, factor, resize.min_pixels, resize.max_pixels)
    except ValueError:
        with pytest.raises(UserError, match="no side is more than 200 times"):
            resize(width, height)
    else:
        assert resize(width, height) == expected[::-1]


def test_unsatisfiable_bounds_are_rejected():
    with pytest.raises(UserError, match="set max_pixels to at least"):
        SmartResize(28, 1000, 500)
