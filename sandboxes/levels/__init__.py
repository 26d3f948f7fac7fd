"""Isolation levels: each one says how untrusted code is kept away from the host. Worlds run inside them."""
