"""Dialects: how the clients of different services write requests, and how they read answers. One file each."""
