"""Tensors in host memory: optimizer state between steps, or all tensors of a learner while it sleeps.

Backends of trainer/learner use it; it depends only on tensors.
"""
