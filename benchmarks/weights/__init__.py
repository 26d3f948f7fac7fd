"""Benchmarks of new weights on their way to engines."""
