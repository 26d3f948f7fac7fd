"""Metrics, times and profiles of the steps of a learner.

Learners write them while they train; trainer/run logs the metrics and joins the times in its timeline.
"""
