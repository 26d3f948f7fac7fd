"""Benchmarks of rollouts: engines, the agent loop, the gateway, workers and tools."""
