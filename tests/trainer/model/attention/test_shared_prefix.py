from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Qwen3Config

from agentloop.trainer.model.attention import packed as attention
from agentloop.trainer.model.attention.ops import packed_attention
from agentloop.trainer.model.attention.packed import PackedRow
from agentloop.trainer.model.attention.shared_prefix import SharedPrefixes

_CONFIG = Qwen3Config(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    initializer_range=0.2,
)


def _models():
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(deepcopy(_CONFIG), attn_implementation="eager", dtype=torch.float32)
    shared = AutoModelForCausalLM.from_config(deepcopy(_CONFIG), attn_implementation=attention.register())
    shared.load_state_dict(plain.state_dict())
    return plain, shared.float()


def test_shared_prefix_matches_separate_sequences():
    """Two groups, of three and two sequences, around a single sequence: hidden states and gradients match."""
    plain, shared = _models()
    lengths, parents = [9, 4, 1, 6, 5, 7, 3, 2], [None, 0, 0, 0, None, None, 5, 5]
    ids = torch.randint(0, 64, (1, sum(lengths)))
    parts = ids.split(lengths, dim=1)
    weights = torch.randn(sum(lengths), 32).split(lengths)
    hidden = shared.model(input_ids=ids, **PackedRow.of(lengths, parents=parents).kwargs()).last_hidden_state[0]
    (hidden * torch.cat(weights)).sum().backward()

    loss = torch.zeros(())
    for part, parent, weight, got in zip(parts, parents, weights, hidden.split(lengths), strict=True):
        whole = part if parent is None else torch.cat([parts[parent], part], dim=1)
        want = plain.model(input_ids=whole).last_hidden_state[0][-part.shape[1] :]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        loss = loss + (want * weight).sum()
    loss.backward()
    for (name, got), want in zip(shared.named_parameters(), plain.parameters(), strict=True):
        if want.grad is not None:
            torch.testing.assert_close(got.grad, want.grad, rtol=1e-3, atol=1e-4, msg=lambda text, n=name: n + text)


def test_prefix_positions_match_hand_computed_example():
    prefixes = SharedPrefixes.of([2, 1, 3, 2, 1, 2], [None, 0, None, 0, None, 4])
    queries, keys, cu_q, cu_k = (tensor.tolist() for tensor in prefixes.tensors)
    assert prefixes.positions == (0, 2, 0, 2, 0, 1)
    assert (queries, keys) == ([2, 6, 7, 9, 10], [0, 1, 8])
    assert (cu_q, cu_k) == ([0, 3, 5], [0, 2, 3])
    assert prefixes.longest == (3, 2)


def _attend(rows, lengths, parents, window=0, **options):
    prefixes = SharedPrefixes.of(lengths, parents) if any(p is not None for p in parents) else None
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    prefix = (*prefixes.tensors, *prefixes.longest) if prefixes else (None, None, None, None, 0, 0)
    return packed_attention(*rows, cu, max(lengths), window, 0.4, "math", *prefix, **options)


def _eager(rows, mask, sinks=None, softcap=0.0):
    query, key, value = rows
    key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], 1) for part in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * 0.4
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, scores.shape[1], 1)], -1)
        value = torch.cat([value, torch.zeros_like(value[:1])])
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


def _mask(lengths, parents):
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    parent = torch.tensor([-1 if p is None else p for p in parents])[segment]
    causal = torch.ones(len(segment), len(segment), dtype=torch.bool).tril()
    return (segment[:, None] == segment) & causal | (parent[:, None] == segment)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_attention_matches_float64_mask(data: st.DataObject):
    """Output and gradients match for any tree of prefixes and segments."""
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=7))
    parents: list[int | None] = []
    for segment in range(len(lengths)):
        roots = [None, *(root for root in range(segment) if parents[root] is None)]
        parents.append(data.draw(st.sampled_from(roots)))
    torch.manual_seed(data.draw(st.integers(0, 100)))
    rows = [torch.randn(sum(lengths), heads, 5, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    grad = torch.randn(sum(lengths), 4, 5, dtype=torch.float64)
    got, want = _attend(rows, lengths, parents)[0], _eager(rows, _mask(lengths, parents))
    # The log-sum-exp through which parts are merged is float32.
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    gradients = (torch.autograd.grad(out, rows, grad) for out in (got, want))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parents", [[None] * 3, [None, 0, 0]], ids=["plain", "shared prefix"])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_sinks_and_soft_caps_match_float64(has_sinks: bool, softcap: float, parents: list[int | None]):
    """Output and gradients match, those of the sinks too."""
    torch.manual_seed(1)
    lengths = [4, 3, 6]
    rows = [torch.randn(13, heads, 5, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True) if has_sinks else None
    grad = torch.randn(13, 4, 5, dtype=torch.float64)
    got = _attend(rows, lengths, parents, sinks=sinks, softcap=softcap)[0]
    want = _eager(rows, _mask(lengths, parents), sinks, softcap)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    inputs = [*rows, sinks] if has_sinks else rows
    gradients = (torch.autograd.grad(out, inputs, grad) for out in (got, want))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


def test_bfloat16_rows_have_output_and_gradients_near_those_of_float64():
    torch.manual_seed(0)
    lengths, parents = [4, 3, 6], [None, 0, 0]
    exact = [torch.randn(13, heads, 8, dtype=torch.float64).bfloat16().double() for heads in (4, 2, 2)]
    rows = [[part.to(dtype).requires_grad_() for part in exact] for dtype in (torch.bfloat16, torch.float64)]
    got, want = _attend(rows[0], lengths, parents)[0], _eager(rows[1], _mask(lengths, parents))
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=0.02, atol=0.02)
    for found, expected in zip(
        torch.autograd.grad(got.sum(), rows[0]), torch.autograd.grad(want.sum(), rows[1]), strict=True
    ):
        torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("window", [1, 3, 100])
def test_sliding_window_matches_mask(window: int):
    torch.manual_seed(0)
    lengths = [7, 1, 12]
    rows = [torch.randn(20, heads, 5, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    places = torch.arange(20)
    near = places[:, None] - places < window
    got, want = _attend(rows, lengths, [None] * 3, window)[0], _eager(rows, _mask(lengths, [None] * 3) & near)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    gradients = (torch.autograd.grad(out.sum(), rows) for out in (got, want))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_op_passes_custom_op_checks():
    """torch.compile relies on the fake's shapes and strides, unchanged inputs and registered gradients."""
    rows = [torch.randn(13, heads, 5, requires_grad=True) for heads in (4, 2, 2)]
    lengths, parents = [4, 3, 6], [None, 0, None]
    prefixes = SharedPrefixes.of(lengths, parents)
    cu = torch.tensor([0, 4, 7, 13], dtype=torch.int32)
    for prefix in ((None, None, None, None, 0, 0), (*prefixes.tensors, *prefixes.longest)):
        torch.library.opcheck(packed_attention, (*rows, cu, 6, 0, 0.4, "math", *prefix))
    sinks = torch.randn(4, requires_grad=True)
    more = {"sinks": sinks, "softcap": 2.0}
    torch.library.opcheck(packed_attention, (*rows, cu, 6, 0, 0.4, "math", *prefix), more)


def test_nested_prefix_raises():
    with pytest.raises(AssertionError, match="no prefix itself"):
        SharedPrefixes.of([1, 1, 1], [None, 0, 1])
