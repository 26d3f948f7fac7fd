"""Databases that a model may query: read-only and bounded, in processes that can be killed.

`agentloop.envs.rewards.sql_execution` compares results with them.
"""
