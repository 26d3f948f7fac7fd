"""Benchmarks: `python -m benchmarks.ROOM.SCRIPT` from the root of the repository. Results are JSON in results/."""
