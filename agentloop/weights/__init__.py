"""Weights on their way from a learner to engines: one handle, and a file for each transport."""
