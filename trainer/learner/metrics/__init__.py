"""Metrics, times and profiles of learner steps.

Learners write them while they train; trainer/run logs the metrics and adds the times to its timeline.
"""
