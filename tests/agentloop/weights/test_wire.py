import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.storage import TypedStorage

from agentloop.weights.buckets import DeviceHandle, HostHandle
from agentloop.weights.shelf import Part, Place, SharedWeights, WeightShelf
from agentloop.weights.wire import from_json, to_json

NUMBERS = st.integers(0, 2**63)
HOST = st.builds(HostHandle, NUMBERS, NUMBERS, NUMBERS)
DEVICE = st.builds(
    lambda size, device, handle, number, counter, event: DeviceHandle(
        (torch.Tensor, torch.Size([size]), (1,), 0, TypedStorage, torch.uint8, device, handle, size, number, False,
         counter, number, event, True)
    ),
    NUMBERS, st.integers(0, 15), st.binary(max_size=80), NUMBERS, st.binary(max_size=80), st.binary(max_size=80),
)  # fmt: skip
"""As `reduce_tensor` returns for memory of a GPU."""
PART = st.builds(Part, st.text(), NUMBERS, st.lists(HOST | DEVICE, max_size=3).map(tuple))
SHARED = st.builds(
    SharedWeights,
    st.lists(PART, max_size=2).map(tuple),
    st.lists(
        st.builds(
            Place, st.text(), st.sampled_from(["bfloat16", "float32", "uint8"]), st.lists(NUMBERS).map(tuple), NUMBERS,
            NUMBERS,
        ),
        max_size=4,
    ).map(tuple),
)  # fmt: skip


@settings(deadline=None)
@given(SHARED)
def test_weights_are_the_same_after_json(shared: SharedWeights):
    assert from_json(to_json(shared)) == shared


def test_weights_of_a_shelf_open_after_json():
    shelf = WeightShelf()  # the memory goes with it
    shared = shelf.put([("a", torch.arange(4.0)), ("b", torch.ones(2, 2, dtype=torch.bfloat16))])
    read = dict(from_json(to_json(shared)).open())
    assert torch.equal(read["a"], torch.arange(4.0))
    assert torch.equal(read["b"], torch.ones(2, 2, dtype=torch.bfloat16))


JSON = st.recursive(
    st.none() | st.integers() | st.text() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
)


@settings(deadline=None)
@given(JSON)
def test_any_other_json_is_refused(data: object):
    with pytest.raises(ValueError):  # noqa: PT011 (any text)
        from_json(json.dumps({"parts": [[data]], "places": data}))


def test_a_dtype_is_a_dtype():
    with pytest.raises(ValueError, match="'load' is not a dtype"):
        from_json(json.dumps({"parts": [], "places": [["a", "load", [1], 0, 0]]}))
