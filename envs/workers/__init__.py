"""Environments that run in another interpreter, because their packages do not agree with ours.

`script.py` runs there and says how to write such an environment; `pool.py` is our side of it.
"""
