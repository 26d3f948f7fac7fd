"""Routes of the daemon: one file for each protocol or group of paths."""
