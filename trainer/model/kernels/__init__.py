"""Kernels of the learner, each with the same function in plain torch for devices without Triton."""
