import pytest
import torch

from agentloop.trainer.model.head.logprobs import token_logprobs


def _naive(hidden, weight, targets, temperature):
    log_p = torch.log_softmax((hidden @ weight.t()) / temperature, dim=-1)
    return log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)


def _inputs():
    torch.manual_seed(0)
    hidden = torch.randn(23, 8, requires_grad=True)
    weight = torch.randn(50, 8, requires_grad=True)
    return hidden, weight, torch.randint(0, 50, (23,))


@pytest.mark.parametrize("chunk_tokens", [1, 7, 23, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("use", ["logprobs", "entropy", "both"])
def test_values_and_gradients_match_naive_implementation(chunk_tokens: int, temperature: float, use: str):
    hidden, weight, targets = _inputs()
    scale = torch.randn(2, 23) * torch.tensor([[use != "entropy"], [use != "logprobs"]])

    def run(outputs):
        logprobs, entropy = outputs
        terms = [
            part * factor
            for part, factor, name in ((logprobs, scale[0], "entropy"), (entropy, scale[1], "logprobs"))
            if name != use
        ]
        return torch.autograd.grad(sum(term.sum() for term in terms), (hidden, weight))

    got = token_logprobs(hidden, weight, targets, temperature=temperature, chunk_tokens=chunk_tokens)
    want = _naive(hidden, weight, targets, temperature)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(run(got), run(want), rtol=1e-4, atol=1e-5)


def test_gradients_match_finite_differences_in_float64():
    hidden, weight, targets = _inputs()
    hidden, weight = hidden.detach(), weight.detach()
    # Numerically: a step of the logprob along a direction, in float64, against the analytic gradient.
    direction = torch.randn_like(weight)
    variable = weight.clone().requires_grad_()
    logprobs, entropy = token_logprobs(hidden, variable, targets, temperature=0.7, chunk_tokens=5)
    (gradient,) = torch.autograd.grad(logprobs.sum() + 0.5 * entropy.sum(), variable)

    def value(step: float) -> torch.Tensor:
        moved = (weight.double() + step * direction.double(), targets, 0.7)
        logprobs, entropy = _naive(hidden.double(), *moved)
        return logprobs.sum() + 0.5 * entropy.sum()

    numeric = (value(1e-5) - value(-1e-5)) / 2e-5
    torch.testing.assert_close((gradient * direction).sum().double(), numeric, rtol=1e-4, atol=1e-4)


def test_softmax_is_float32_for_any_weight_dtype():
    hidden, weight, targets = _inputs()
    logprobs, entropy = token_logprobs(hidden.bfloat16(), weight.bfloat16(), targets)
    assert logprobs.dtype == entropy.dtype == torch.float32
    want, _ = _naive(hidden.bfloat16().float(), weight.bfloat16().float(), targets, 1.0)
    torch.testing.assert_close(logprobs, want, rtol=0.02, atol=0.05)


def test_empty_input_gives_no_logprobs_and_zero_temperature_raises():
    hidden, weight, _ = _inputs()
    logprobs, entropy = token_logprobs(hidden[:0], weight, torch.zeros(0, dtype=torch.long))
    assert (len(logprobs), len(entropy)) == (0, 0)
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(hidden, weight, torch.zeros(23, dtype=torch.long), temperature=0.0)
