"""The trainer. Read `run/run.py` first: it shows how the packages work together."""
