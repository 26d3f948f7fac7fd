"""Boxes: one whole machine for each episode, with a file system that persists from start to stop."""

from agentloop.boxes.interface.box import Box, BoxError, BoxLostError, BoxProvider, BoxResult, Process
from agentloop.boxes.interface.spec import BoxSpec, Image, Network
from agentloop.boxes.registry import PROVIDERS, create

__all__ = [
    "PROVIDERS",
    "Box",
    "BoxError",
    "BoxLostError",
    "BoxProvider",
    "BoxResult",
    "BoxSpec",
    "Image",
    "Network",
    "Process",
    "create",
]
