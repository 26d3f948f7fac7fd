"""Estimates before a run: memory and time of layouts, and the placement of learner and engines.

It comes after the configuration and before any process starts.
"""
