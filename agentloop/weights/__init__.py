"""Weights on their way from the learner to engines: shared memory, broadcasts, and files."""
