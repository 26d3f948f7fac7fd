"""vLLM's head returns logits that are not rounded to the dtype of the model."""

import pytest
import torch

from agentloop.engines.vllm.head import keep_logits_float32

pytestmark = pytest.mark.vllm


def head(dtype, rows=5000):
    """Return a head of vLLM of one rank, without the process groups that its constructor asks for."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

    layer = ParallelLMHead.__new__(ParallelLMHead)
    torch.nn.Module.__init__(layer)
    torch.manual_seed(0)
    layer.weight = torch.nn.Parameter(torch.randn(rows, 16).to(dtype), requires_grad=False)
    layer.quant_method = UnquantizedEmbeddingMethod()
    return layer


def test_logits_are_not_rounded():
    layer = head(torch.bfloat16)
    hidden, bias = (10 * torch.randn(3, 16)).bfloat16(), torch.randn(5000).bfloat16()
    exact = hidden.double() @ layer.weight.double().t() + bias.double()
    rounded = (hidden @ layer.weight.t() + bias).double()
    assert (rounded - exact).abs().max() > 0.1
    keep_logits_float32(torch.nn.Sequential(layer))
    logits = layer.quant_method.apply(layer, hidden, bias)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), exact, rtol=1e-6, atol=1e-4)


def test_float32_and_quantised_heads_stay_as_they_are():
    class Quantised:
        def apply(self, layer, x, bias=None):
            return x

    exact, quantised = head(torch.float32), head(torch.bfloat16)
    quantised.quant_method = Quantised()
    keep_logits_float32(torch.nn.Sequential(exact, quantised))
    assert "apply" not in vars(exact.quant_method) | vars(quantised.quant_method)
