"""Estimates before a run: memory and time of layouts, and where learner and engines are placed."""
