"""Processes and GPUs: Ray sessions, reservations, learner ranks, and weights between hosts."""
