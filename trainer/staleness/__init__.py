"""Off-policyness: how old the weights may be that sampled what is trained, and what is done to keep it so."""

from agentloop.trainer.staleness.policy import QueuedGroup, StalenessPolicy, Swap

__all__ = ["QueuedGroup", "StalenessPolicy", "Swap"]
