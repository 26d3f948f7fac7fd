"""Isolation levels: how untrusted code is kept away from the host. They build worlds, which run the code."""
