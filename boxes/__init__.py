"""Boxes: whole machines for one episode each, with a file system that lasts from start to stop."""
