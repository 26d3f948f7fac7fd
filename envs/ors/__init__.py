"""Environments on servers of the Open Reward Standard. `OpenReward` is the entry point."""
