"""Keep logits in float32: vLLM's LM head multiplies as before, but does not round the product to the model's dtype.

Logits of trained models reach 30, where bfloat16 has steps of 0.125. The product itself is accumulated in float32
anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_ROWS = 4096
"""Number of rows of the head that a CPU converts at once, so that they fit in its cache."""


def keep_logits_float32(model: torch.nn.Module) -> None:
    """Make the LM heads of vLLM's `model` return float32. Quantised heads are left unchanged."""
    import torch
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

    for layer in model.modules():
        if isinstance(layer, VocabParallelEmbedding):
            method = layer.quant_method
            if type(method) is UnquantizedEmbeddingMethod and layer.weight.dtype != torch.float32:
                vars(method)["apply"] = float32_logits  # affects only this layer: vLLM creates one method per layer


def float32_logits(layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias in float32: x [..., hidden_size] -> [..., vocab]. Replaces `quant_method.apply`."""
    import torch

    flat, weight = x.flatten(0, -2), layer.weight
    assert isinstance(weight, torch.Tensor)
    if x.is_cuda:
        logits = torch.mm(flat, weight.t(), out_dtype=torch.float32)
    else:
        logits = torch.cat([flat.float() @ part.float().t() for part in weight.split(_ROWS)], dim=-1)
    if bias is not None:
        logits += bias
    return logits.unflatten(0, x.shape[:-1])
