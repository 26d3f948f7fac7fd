"""Rewards of programs: run a solution against test cases in a sandbox."""
