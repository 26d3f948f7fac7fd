"""Derive batch sizes from the numbers of groups, episodes and updates, and the token budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentloop.config.run import RunConfig
from agentloop.trainer.sizing.layouts import Layout


@dataclass(slots=True, frozen=True, kw_only=True)
class BatchSizes:
    """Batch sizes of one run.

    A step plays groups, and trains on their trajectories in `mini_batches` updates over all ranks.
    """

    groups: int
    group_size: int
    mini_batches: int
    steps: int
    ranks: int
    """Number of data-parallel ranks, which have different trajectories."""
    token_budget: int
    """Largest number of tokens in a micro-batch."""
    max_tokens: int
    """Largest number of tokens in a trajectory."""

    @classmethod
    def of(cls, config: RunConfig, *, ranks: int | None = None) -> BatchSizes:
        """Return the batch sizes of a config. `ranks` defaults to the data parallel ranks of the config."""
        return cls(
            groups=config.algorithm.groups_per_step,
            group_size=config.algorithm.group_size,
            mini_batches=config.learner.mini_batches,
            steps=config.run.steps,
            ranks=_data_parallel_ranks(config) if ranks is None else ranks,
            token_budget=config.learner.token_budget,
            max_tokens=config.max_tokens(),
        )

    @property
    def trajectories(self) -> int:
        """Trajectories of a step if none is dropped."""
        return self.groups * self.group_size

    @property
    def smallest_update(self) -> int:
        """Trajectories in the smallest update of a step; updates differ by at most one."""
        return self.trajectories // self.mini_batches

    @property
    def largest_update(self) -> int:
        """Trajectories in the largest update of a step."""
        return -(-self.trajectories // self.mini_batches)

    @property
    def most_micro_batches(self) -> int:
        """Micro-batches of a rank in an update whose trajectories all have the largest length."""
        in_one = max(self.token_budget // self.max_tokens, 1)
        return -(-self.largest_update // (self.ranks * in_one))

    def lines(self) -> dict[str, str]:
        """Return a summary for the user, as label -> text."""
        sizes = sorted({self.smallest_update, self.largest_update})
        of_update = " or ".join(map(str, sizes))
        return {
            "episodes per step": f"{self.trajectories} = {self.groups} tasks x {self.group_size}",
            "updates": f"{self.mini_batches} per step, of {of_update} episodes; "
            f"{self.mini_batches * self.steps} in all",
            "ranks": f"{self.ranks}, with {self.largest_update / self.ranks:g} episodes of an update each",
            "micro-batches": f"of at most {self.token_budget} tokens, {self.token_budget // self.max_tokens} of the "
            f"longest episodes ({self.max_tokens} tokens); at most {self.most_micro_batches} per rank and update",
        }

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each problem, with the numbers and a fix."""
        if self.token_budget < self.max_tokens:
            yield (
                f"learner.token_budget is {self.token_budget} but limits.max_tokens is {self.max_tokens}: some "
                f"trajectories may be too long to train on. Set learner.token_budget={self.max_tokens} or more, or "
                "lower limits.max_tokens."
            )
        made_of = f"algorithm.groups_per_step {self.groups} * algorithm.group_size {self.group_size}"
        if self.mini_batches > self.trajectories:
            yield (
                f"learner.mini_batches is {self.mini_batches}, but a step has {self.trajectories} trajectories "
                f"({made_of}). Set learner.mini_batches={self.trajectories} or less."
            )
        elif self.smallest_update < self.ranks:
            groups = -(-self.ranks * self.mini_batches // self.group_size)
            fewer = self.trajectories // self.ranks
            fix = f", learner.mini_batches={fewer} or less" if fewer else ""
            yield (
                f"An update has {self.smallest_update} trajectories ({made_of}, over learner.mini_batches "
                f"{self.mini_batches}) for {self.ranks} ranks: some ranks would be idle. Set "
                f"algorithm.groups_per_step={groups} or more{fix}, or use {self.smallest_update} ranks or fewer."
            )


def training_ranks(config: RunConfig) -> int:
    """Return the number of processes that train together."""
    return config.learner.ranks


def _data_parallel_ranks(config: RunConfig) -> int:
    """Return the number of ranks with different trajectories."""
    return max(Layout.of(config.learner, training_ranks(config)).data, 1)
