"""Compare the Triton kernels with float64 on a CPU; test_softmax_kernels.py runs this with Triton's interpreter."""

import torch

from agentloop.trainer.model.kernels import softmax_triton

_INVERSE_TEMPERATURE = 1 / 0.7


def _relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


def main() -> None:
    torch.manual_seed(0)
    for vocab in (1, 50, 4096, 10_001):
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 5e-3)):
            logits = (torch.randn(4, vocab) * 6).to(dtype)
            targets = torch.tensor([0, vocab - 1, vocab // 2, vocab // 3])
            logprob, entropy, lse = softmax_triton.statistics(logits, targets, _INVERSE_TEMPERATURE)
            z = logits.double().requires_grad_()
            log_p = torch.log_softmax(z * _INVERSE_TEMPERATURE, -1)
            want = log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
            for got, exact in zip((logprob, entropy), want, strict=True):
                torch.testing.assert_close(got.double(), exact.detach(), rtol=1e-5, atol=1e-5)
            of_logprob, of_entropy = torch.randn(2, 4).unbind()
            for given in (None, of_entropy):
                loss = (want[0] * of_logprob).sum() + (0.0 if given is None else (want[1] * given).sum())
                (exact,) = torch.autograd.grad(loss, z, retain_graph=True)
                found = softmax_triton.gradient_(
                    logits.clone(), targets, lse, entropy, of_logprob, given, _INVERSE_TEMPERATURE
                )
                assert found.dtype == dtype
                if vocab > 1:  # with one token there is no choice, and no gradient but rounding
                    assert _relative(found, exact) < tolerance, (vocab, dtype, _relative(found, exact))
    print("equal")


main()
