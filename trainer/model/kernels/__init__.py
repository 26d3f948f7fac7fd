"""Kernels of the model, each with an equal function in plain torch for devices without Triton or FlashAttention."""
