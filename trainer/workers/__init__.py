"""The rollout workers of a run, as the run loop sees them."""
