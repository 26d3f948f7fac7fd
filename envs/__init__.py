"""Environments, and what they draw on: datasets and rewards.

They offer `agentloop.tools` to the model; `agentloop.episodes` plays their episodes.
"""
