"""The Ray actor of a learner rank: it runs functions together with all other ranks."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from typing import Any

import torch

from agentloop.errors import UserError
from agentloop.trainer.cluster import process_group
from agentloop.trainer.cluster.process_group import Rendezvous

Objects = dict[str, Any]
"""Name -> object of a rank that outlives a call."""
ASIDE = "aside"
"""Concurrency group of calls that run concurrently with others."""
PROBES = "probes"
"""Concurrency group of `answer`, which must not wait for calls that hang."""


class RankActor:
    """A rank of the learner. Its process always exits with the process of the run, even if that is killed."""

    def __init__(self, rank: int, threads: int | None, patience: float) -> None:
        self._rank = rank
        self._patience = patience
        self._objects: Objects = {}
        if threads is not None:
            torch.set_num_threads(threads)
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

    def answer(self) -> None:
        """Return at once, to show that this process lives."""

    def check(self, node: str, rendezvous: Rendezvous, ranks_of_node: int, version: str) -> None:
        """Raise `UserError` if this node cannot host its ranks."""
        if torch.__version__ != version:
            raise UserError(
                f"The run uses torch {version}, but node {node} has torch {torch.__version__}. Install the same "
                "version on all nodes of the learner."
            )
        if rendezvous.device == "cuda" and torch.cuda.device_count() < ranks_of_node:
            raise UserError(
                f"Node {node} needs CUDA devices for {ranks_of_node} ranks of the learner, but torch sees "
                f"{torch.cuda.device_count()} there. Raise learner.nodes, or lower learner.ranks."
            )
        if not rendezvous.is_reachable():
            raise UserError(
                f"Node {node} cannot reach the learner's first rank at {rendezvous.address}:{rendezvous.port}. The "
                "ranks of a learner use any port: open all ports between the nodes of the cluster."
            )

    def join(self, rendezvous: Rendezvous, gpu: int, address: str | None) -> None:
        """Join the process group on the GPU with this index; `address` is the network address of this node."""
        if address is not None:
            process_group.use_interface_of(address)
        process_group.join(self._rank, rendezvous, gpu)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call `function(objects, *args)`; if it is slow, write the stacks of all threads to the actor's log.

        Rank 0 returns the result.
        """
        faulthandler.dump_traceback_later(self._patience, file=2)
        try:
            return self.call_aside(function, args)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def call_aside(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call `function(objects, *args)` while this rank accepts further calls. Rank 0 returns the result."""
        result = function(self._objects, *args)
        return result if self._rank == 0 else None
