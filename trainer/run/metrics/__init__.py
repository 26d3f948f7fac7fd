"""Metrics of the steps of a run: episodes, sources, dynamic sampling, and the table of all metrics."""
