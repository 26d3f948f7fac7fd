"""Batch sizes: the user states prompts, episodes of each, updates and the budget of a micro-batch; the rest follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentloop.config.run import RunConfig
from agentloop.trainer.sizing.layouts import Layout


@dataclass(slots=True, frozen=True, kw_only=True)
class BatchSizes:
    """Of one run. A step plays groups, and trains on their trajectories in `mini_batches` updates over all ranks."""

    groups: int
    group_size: int
    mini_batches: int
    steps: int
    ranks: int
    """Processes that train together, one a device."""
    token_budget: int
    """Most tokens of a micro-batch."""
    max_tokens: int
    """Most tokens of a trajectory."""

    @classmethod
    def of(cls, config: RunConfig, *, ranks: int | None = None) -> BatchSizes:
        """By default over the ranks of the configuration, or those that this process was started with."""
        return cls(
            groups=config.algorithm.groups_per_step,
            group_size=config.algorithm.group_size,
            mini_batches=config.learner.mini_batches,
            steps=config.run.steps,
            ranks=_data_parallel_ranks(config) if ranks is None else ranks,
            token_budget=config.learner.token_budget,
            max_tokens=config.limits.max_tokens,
        )

    @property
    def trajectories(self) -> int:
        """Of a step, where none is dropped."""
        return self.groups * self.group_size

    @property
    def smallest_update(self) -> int:
        """Trajectories; updates of a step differ by one at most."""
        return self.trajectories // self.mini_batches

    @property
    def largest_update(self) -> int:
        return -(-self.trajectories // self.mini_batches)

    @property
    def most_micro_batches(self) -> int:
        """Of a rank in an update whose trajectories are all as long as they can be."""
        in_one = max(self.token_budget // self.max_tokens, 1)
        return -(-self.largest_update // (self.ranks * in_one))

    def lines(self) -> dict[str, str]:
        """What it comes to, for people: name -> value."""
        sizes = sorted({self.smallest_update, self.largest_update})
        of_update = " or ".join(map(str, sizes))
        return {
            "episodes a step": f"{self.trajectories} = {self.groups} tasks x {self.group_size}",
            "updates": f"{self.mini_batches} a step, of {of_update} episodes; {self.mini_batches * self.steps} in all",
            "ranks": f"{self.ranks}, with {self.largest_update / self.ranks:g} episodes of an update each",
            "micro-batches": f"of at most {self.token_budget} tokens, {self.token_budget // self.max_tokens} of the "
            f"longest episodes ({self.max_tokens} tokens); at most {self.most_micro_batches} a rank and update",
        }

    def problems(self) -> Iterator[str]:
        """Sentences: the numbers, and the fix."""
        if self.token_budget < self.max_tokens:
            yield (
                f"learner.token_budget is {self.token_budget} and limits.max_tokens {self.max_tokens}: a trajectory "
                f"could be too long to train on. Set learner.token_budget={self.max_tokens} or more, or lower "
                "limits.max_tokens."
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
                f"{self.mini_batches}) for {self.ranks} ranks: some would have nothing to do. Set "
                f"algorithm.groups_per_step={groups} or more{fix}, or use {self.smallest_update} ranks or fewer."
            )


def training_ranks(config: RunConfig) -> int:
    """Return the number of processes that train together."""
    return config.learner.ranks


def _data_parallel_ranks(config: RunConfig) -> int:
    """Those that have trajectories of their own."""
    return max(Layout.of(config.learner, training_ranks(config)).data, 1)
