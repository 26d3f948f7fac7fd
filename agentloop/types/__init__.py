"""Shared data types: messages, requests, trajectories, limits, and their file formats."""
