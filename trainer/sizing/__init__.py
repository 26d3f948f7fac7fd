"""Estimates before a run: memory and time of layouts, and the placement of learner and engines.

It uses the configuration and runs before any process starts.
"""
