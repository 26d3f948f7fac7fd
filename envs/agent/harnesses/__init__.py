"""Harnesses: agents that others publish, and how each is started with fresh configuration. One file each."""
