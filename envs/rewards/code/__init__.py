"""Reward of programs: run a solution on test cases in a sandbox."""
