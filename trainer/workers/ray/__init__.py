"""Rollout workers as Ray actors, any of which may die."""
