"""Benchmarks of the sandbox and its daemon."""
