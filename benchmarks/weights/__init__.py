"""Benchmarks of the transfer of new weights to engines."""
