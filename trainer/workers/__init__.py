"""Rollout workers of a run: they get requests for groups from the schedule and play them with engines."""
