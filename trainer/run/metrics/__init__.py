"""Metrics of the steps of a run: of its episodes and of dynamic sampling, and the table of all names."""
