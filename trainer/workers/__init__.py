"""The rollout workers of a run: between the schedule, which requests groups, and engines, which sample turns."""
