import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from agentloop.trainer.model.head.fused_head import head_loss
from agentloop.trainer.model.head.head_chunks import chunks, groups
from agentloop.trainer.model.head.logprobs import token_logprobs
from agentloop.trainer.model.kernels.allowed_tokens import AllowedTokens
from agentloop.trainer.model.kernels.softmax import Softcapped

_TOKENS, _HIDDEN, _VOCAB = 23, 8, 50


def _inputs(dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    hidden = torch.randn(_TOKENS, _HIDDEN).to(dtype).requires_grad_()
    weight = torch.randn(_VOCAB, _HIDDEN).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, _VOCAB, (_TOKENS,))


def _loss(logprobs, entropy, rows):
    """Return a PPO-like loss: nonlinear in the logprob, with entropy, different for each token."""
    advantages = torch.linspace(-1, 1, _TOKENS, dtype=logprobs.dtype)[rows]
    ratio = (logprobs + 4.0).exp()
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).sum() - 0.1 * entropy.sum()


def _exact(hidden, weight, targets, temperature, cap=None, forbidden=None):
    hidden, weight = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    logits = hidden @ weight.t()
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    if forbidden is not None:
        logits = logits.masked_fill(forbidden, -1e300)
    log_p = torch.log_softmax(logits / temperature, dim=-1)
    logprobs, entropy = log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)
    loss = _loss(logprobs, entropy, slice(None))
    return loss, logprobs, entropy, *torch.autograd.grad(loss, (hidden, weight))


@pytest.mark.parametrize("chunk_tokens", [1, 7, 23, 100, None])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_loss_and_gradients_match_float64(chunk_tokens: int | None, temperature: float):
    hidden, weight, targets = _inputs()
    found = head_loss(hidden, weight, targets, _loss, temperature=temperature, chunk_tokens=chunk_tokens)
    got = (*found, *torch.autograd.grad(found[0], (hidden, weight)))
    for one, other in zip(got, _exact(hidden, weight, targets, temperature), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_soft_capped_logits_match_float64(temperature: float):
    """Both heads differentiate through the soft cap of a model's logits."""
    hidden, weight, targets = _inputs()
    options = {"temperature": temperature, "chunk_tokens": 7, "vocabulary": Softcapped(1.5)}
    exact = _exact(hidden, weight, targets, temperature, cap=1.5)
    found = head_loss(hidden, weight, targets, _loss, **options)
    logprobs, entropy = token_logprobs(hidden, weight, targets, **options)
    loss = _loss(logprobs, entropy, slice(None))
    for results in (
        (*found, *torch.autograd.grad(found[0], (hidden, weight))),
        (loss, logprobs, entropy, *torch.autograd.grad(loss, (hidden, weight))),
    ):
        for one, other in zip(results, exact, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


def _masks(targets):
    """Allow the targets and a third of the other tokens at every second place."""
    places = torch.arange(1, _TOKENS, 2)
    allowed = torch.rand(len(places), 64, generator=torch.Generator().manual_seed(0)) < 1 / 3
    allowed[torch.arange(len(places)), targets[places]] = True
    bits = (allowed.view(-1, 2, 32).long() << torch.arange(32)).sum(-1).to(torch.int32)
    forbidden = torch.zeros(_TOKENS, _VOCAB, dtype=torch.bool)
    forbidden[places] = ~allowed[:, :_VOCAB]
    return AllowedTokens(places.numpy(), bits), forbidden


@pytest.mark.parametrize("chunk_tokens", [1, 7, None])
@pytest.mark.parametrize("cap", [None, 1.5])
def test_constrained_tokens_match_float64(chunk_tokens: int | None, cap: float | None):
    hidden, weight, targets = _inputs()
    allowed, forbidden = _masks(targets)
    options = {"temperature": 0.6, "chunk_tokens": chunk_tokens, "allowed": allowed}
    options |= {} if cap is None else {"vocabulary": Softcapped(cap)}
    exact = _exact(hidden, weight, targets, 0.6, cap, forbidden)
    found = head_loss(hidden, weight, targets, _loss, **options)
    logprobs, entropy = token_logprobs(hidden, weight, targets, **options)
    loss = _loss(logprobs, entropy, slice(None))
    for results in (
        (*found, *torch.autograd.grad(found[0], (hidden, weight))),
        (loss, logprobs, entropy, *torch.autograd.grad(loss, (hidden, weight))),
    ):
        for one, other in zip(results, exact, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


def test_masks_of_a_part_of_tokens_or_vocabulary_are_those_of_the_whole():
    _, _, targets = _inputs()
    allowed, forbidden = _masks(targets)
    kept = torch.tensor([0, 3, 4, 9, 17])
    logits = allowed.chosen(kept.numpy()).forbid_(torch.zeros(len(kept), _VOCAB))
    assert torch.equal(logits < 0, forbidden[kept])
    second = allowed.part(30).forbid_(torch.zeros(_TOKENS, 20))
    assert torch.equal(second < 0, forbidden[:, 30:])
    assert allowed.chosen(np.array([0, 2])) is None
    assert allowed.rows(slice(4, 5)) is None


_UNITS = (5, 1, 9, 0, 6, 2)


def _unit_loss(logprobs, entropy, rows):
    """Return a loss that is nonlinear in the mean of each unit, as GSPO; `rows` must be whole units."""
    ends = torch.tensor(_UNITS).cumsum(0).tolist()
    places = [(end - size, end) for size, end in zip(_UNITS, ends, strict=True) if size]
    assert {rows.start, rows.stop} <= {place for pair in places for place in pair} | {0}
    inside = [(a, slice(a - rows.start, b - rows.start)) for a, b in places if rows.start <= a and b <= rows.stop]
    return sum((logprobs[of].mean() + 4).exp() * (1 + a) - entropy[of].mean() for a, of in inside)


@pytest.mark.parametrize("chunk_tokens", [1, 4, 6, 8, 23, None])
def test_unit_level_loss_matches_float64(chunk_tokens: int | None):
    hidden, weight, targets = _inputs()
    found = head_loss(hidden, weight, targets, _unit_loss, chunk_tokens=chunk_tokens, units=_UNITS)
    double = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    log_p = torch.log_softmax(double[0] @ double[1].t(), dim=-1)
    logprobs, entropy = log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)
    loss = _unit_loss(logprobs, entropy, slice(0, _TOKENS))
    got = (*found, *torch.autograd.grad(found[0], (hidden, weight)))
    want = (loss, logprobs, entropy, *torch.autograd.grad(loss, double))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("chunk_tokens", "again"), [(9, 0), (23, 0), (5, 5 + 5), (4, 4 + 4 + 4 + 4)])
def test_logits_are_recomputed_only_for_units_longer_than_a_chunk(chunk_tokens: int, again: int):
    """`again`: tokens before the last chunk of a unit that is longer than a chunk."""
    hidden, weight, targets = _inputs()
    with FlopCounterMode(display=False) as counter:
        head_loss(hidden, weight, targets, _unit_loss, chunk_tokens=chunk_tokens, units=_UNITS)
    assert counter.get_total_flops() == (3 * _TOKENS + again) * 2 * _HIDDEN * _VOCAB


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 30))
def test_chunk_groups_keep_units_whole_and_in_order(units: list[int], chunk_tokens: int):
    found = groups(sum(units), torch.empty(10, 1), chunk_tokens, units)
    assert [place for group in found for part in group for place in range(part.start, part.stop)] == list(
        range(sum(units))
    )
    ends = {0, *np.cumsum(units).tolist()}
    for group in found:
        assert {group[0].start, group[-1].stop} <= ends
        assert all(part.stop - part.start <= chunk_tokens for part in group)
        longest = max(size for size in units if size)
        assert len(group) == 1 or group[-1].stop - group[0].start <= longest


def test_gradient_scales_with_loss_gradient():
    hidden, weight, targets = _inputs()
    once, thrice = (
        torch.autograd.grad(factor * head_loss(hidden, weight, targets, _loss)[0], (hidden, weight))
        for factor in (1, 3)
    )
    torch.testing.assert_close(thrice, tuple(3 * part for part in once))


def test_bfloat16_is_as_accurate_as_plain_autograd():
    hidden, weight, targets = _inputs(torch.bfloat16)
    want = _exact(hidden, weight, targets, 1.0)[3:]
    log_p = torch.log_softmax((hidden @ weight.t()).float(), dim=-1)
    plain = _loss(log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1), slice(None))
    loss, *_ = head_loss(hidden, weight, targets, _loss, chunk_tokens=5)
    grads = (torch.autograd.grad(each, (hidden, weight)) for each in (loss, plain))
    for got, usual, exact in zip(*grads, want, strict=True):
        assert got.dtype == torch.bfloat16
        assert (got - exact).norm() < 1.2 * (usual - exact).norm() + 1e-3 * exact.norm()


def test_loss_without_gradient_gives_zero_gradients():
    hidden, weight, targets = _inputs()
    loss, *_ = head_loss(hidden, weight, targets, lambda logprobs, entropy, rows: torch.ones(()), chunk_tokens=10)
    assert loss.item() == 3
    assert all(not part.any() for part in torch.autograd.grad(loss, (hidden, weight)))


def test_values_are_the_same_under_no_grad():
    hidden, weight, targets = _inputs()
    want = head_loss(hidden, weight, targets, _loss)
    with torch.no_grad():
        got = head_loss(hidden, weight, targets, _loss)
        logprobs, entropy = token_logprobs(hidden, weight, targets)
    torch.testing.assert_close(got, tuple(part.detach() for part in want))
    torch.testing.assert_close((logprobs, entropy), got[1:])


def test_frozen_head_gets_no_gradient():
    hidden, weight, targets = _inputs()
    loss, *_ = head_loss(hidden, weight.detach(), targets, _loss)
    (got,) = torch.autograd.grad(loss, hidden)
    torch.testing.assert_close(got.double(), _exact(hidden, weight, targets, 1.0)[3], rtol=2e-5, atol=2e-5)


def test_empty_input_gives_zero_loss_and_zero_temperature_raises():
    hidden, weight, targets = _inputs()
    loss, logprobs, _ = head_loss(hidden[:0], weight, targets[:0], _loss)
    assert loss.item() == 0
    assert len(logprobs) == 0
    loss.backward()
    with pytest.raises(ValueError, match="temperature"):
        head_loss(hidden, weight, targets, _loss, temperature=0.0)


@pytest.mark.parametrize("count", [0, 1, 127, 128, 1000, 5000])
def test_chunks_cover_all_tokens_in_order_with_similar_sizes(count: int):
    weight = torch.empty(200_000, 1, dtype=torch.bfloat16)
    parts = list(chunks(count, weight))
    assert [place for part in parts for place in range(part.start, part.stop)] == list(range(count))
    sizes = [part.stop - part.start for part in parts]
    assert all(size * weight.shape[0] * 2 <= 200_000 * 2 * 128 for size in sizes)
    assert all(size % 128 == 0 for size in sizes[:-1])
