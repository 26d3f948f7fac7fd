"""The run: its loop, checks, checkpoints, folder, metrics and loggers. `run.py` shows the whole."""
