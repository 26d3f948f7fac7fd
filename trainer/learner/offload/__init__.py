"""Tensors in the memory of the host: the optimizer's state between steps, or all of a learner while it sleeps.

Backends of trainer/learner use it; it knows only tensors.
"""
