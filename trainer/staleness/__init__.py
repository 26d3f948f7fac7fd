"""Off-policyness: how old the weights may be that sampled what is trained, and what is done to keep it so."""

from agentloop.trainer.staleness.policy import Admitted, StalenessPolicy, Swap

__all__ = ["Admitted", "StalenessPolicy", "Swap"]
