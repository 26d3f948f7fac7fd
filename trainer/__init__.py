"""The trainer. Read `run/run.py` first: it shows how the rooms work together."""
