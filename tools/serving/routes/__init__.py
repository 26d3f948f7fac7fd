"""Routes of the sandbox daemon: one file for each protocol or group of paths."""
