"""The bound on the age of the weights that sampled the trained tokens, and the policy that keeps it."""

from agentloop.trainer.staleness.policy import QueuedGroup, StalenessPolicy, Swap

__all__ = ["QueuedGroup", "StalenessPolicy", "Swap"]
