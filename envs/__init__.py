"""Environments, and the datasets and rewards that they use.

They offer `agentloop.tools` to the model, and `agentloop.episodes` plays their episodes.
"""
