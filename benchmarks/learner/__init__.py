"""Benchmarks of the learner: kernels, steps, memory, scaling, and verl on the same card."""
