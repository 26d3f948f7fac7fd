"""Environments in processes of another interpreter, because their packages conflict with agentloop's.

`script.py` runs there and documents how to write such an environment; `pool.py` is its client.
"""
