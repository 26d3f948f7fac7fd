"""The kernels of the learner on CUDA against float64, and what only a compiler can break."""

import numpy as np
import pytest
import torch

from agentloop.trainer.model.attention import choice as attention_choice
from agentloop.trainer.model.attention.ops import packed_attention
from agentloop.trainer.model.attention.shared_prefix import SharedPrefixes
from agentloop.trainer.model.head.fused_head import head_loss
from agentloop.trainer.model.kernels import softmax

pytestmark = pytest.mark.gpu

_CUDA = torch.device("cuda")


def _relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


@pytest.mark.parametrize("vocab", [50, 4096, 151_936])
def test_softmax_statistics_and_gradient_equal_float64(vocab: int):
    logits = (torch.randn(64, vocab, device=_CUDA) * 5).bfloat16()
    targets = torch.randint(vocab, (64,), device=_CUDA)
    of_logprob, of_entropy = torch.randn(2, 64, device=_CUDA).unbind()
    found = softmax.statistics(logits, targets, 1 / 0.7)
    z = logits.double().requires_grad_()
    log_p = torch.log_softmax(z / 0.7, -1)
    logprob, entropy = log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    torch.testing.assert_close(found.logprob.double(), logprob, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.entropy.double(), entropy, rtol=1e-5, atol=1e-5)
    (want,) = torch.autograd.grad((logprob * of_logprob + entropy * of_entropy).sum(), z)
    got = softmax.gradient_(logits, targets, found, of_logprob, of_entropy, 1 / 0.7)
    assert _relative(got, want) < 3e-3


@pytest.mark.parametrize("chunk_tokens", [None, 100])
def test_the_fused_head_equals_float64(chunk_tokens: int | None):
    hidden = torch.randn(700, 256, device=_CUDA).bfloat16().requires_grad_()
    weight = (torch.randn(5000, 256, device=_CUDA) * 0.2).bfloat16().requires_grad_()
    targets = torch.randint(5000, (700,), device=_CUDA)
    scale = torch.randn(700, device=_CUDA)
    loss, *_ = head_loss(
        hidden, weight, targets, lambda lp, h, rows: (lp * scale[rows] - 0.1 * h).sum(), chunk_tokens=chunk_tokens
    )
    got = torch.autograd.grad(loss, (hidden, weight))
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    log_p = torch.log_softmax(exact[0] @ exact[1].t(), -1)
    lp, h = log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    want = torch.autograd.grad((lp * scale - 0.1 * h).sum(), exact)
    for one, other in zip(got, want, strict=True):
        assert _relative(one, other) < 1e-2


def _kernels() -> list[str]:
    names = ("fa4", "fa2")
    return [name for name in names if not attention_choice.obstacle(name, _CUDA, torch.bfloat16)]


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("shared", [False, True])
def test_attention_kernels_equal_float32(shared: bool, window: int):
    if shared and window:
        return  # a learner shares no prefixes where a window slides
    lengths = [700, 1, 129, 300, 513]
    rows = [torch.randn(sum(lengths), heads, 128, device=_CUDA).bfloat16().requires_grad_() for heads in (16, 8, 8)]
    grad = torch.randn_like(rows[0])
    cu = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=_CUDA)
    prefixes = SharedPrefixes.of(lengths, [None, 0, 0, 0, None], _CUDA) if shared else None
    prefix = (*prefixes.tensors, *prefixes.longest) if prefixes else (None, None, None, None, 0, 0)

    def run(inputs: list[torch.Tensor], kernel: str) -> list[torch.Tensor]:
        out, _ = packed_attention(*inputs, cu, max(lengths), window, 128**-0.5, kernel, *prefix)
        return [out, *torch.autograd.grad(out, inputs, grad.to(out.dtype))]

    want = run([row.detach().float().requires_grad_() for row in rows], "math")
    assert "fa2" in _kernels()
    for kernel in _kernels():
        for got, exact in zip(run(rows, kernel), want, strict=True):
            assert _relative(got, exact) < 6e-3, kernel
