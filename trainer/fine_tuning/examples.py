"""`Examples`: the rows of a dataset as samples for the learner, converted on demand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentloop.config.fine_tuning import ConversationsConfig
from agentloop.envs.datasets.dataset import load_conversations, load_pairs
from agentloop.envs.datasets.images import has_row_images, load_images
from agentloop.errors import UserError
from agentloop.rendering.conversation import conversation_trajectory
from agentloop.tools import registry
from agentloop.tools.toolset import Toolset
from agentloop.trainer.batch.train_batch import NO_SAMPLED_TOKENS, Sample, TrainBatch

if TYPE_CHECKING:
    from agentloop.rendering.base import ToolSchemas
    from agentloop.rendering.template_renderer import TemplateRenderer
    from agentloop.types.messages import Message
    from agentloop.types.trajectory import Trajectory

Row = dict[str, Any]

TOO_LONG = "too_long"
"""Reason to skip a conversation: it has more than `max_tokens` tokens."""


@dataclass(slots=True, frozen=True)
class Examples:
    """Conversations, or preference pairs, of a dataset.

    Only the rows stay in memory; tokens and images of a step are created for that step.
    """

    rows: Sequence[Row]
    renderer: TemplateRenderer
    max_tokens: int
    pairs: bool
    """Whether rows are preference pairs."""
    last_turn_only: bool = False

    @classmethod
    def load(
        cls, config: ConversationsConfig, renderer: TemplateRenderer, *, max_tokens: int, pairs: bool
    ) -> tuple[Examples, Examples | None]:
        """Load the examples to train on, and the held-out ones. Raises `UserError` for unusable rows."""
        load = load_pairs if pairs else load_conversations
        tools = Toolset([tool for each in config.tools for tool in registry.load_all(each.name, **each.options)])
        train = load(config.train, options=config.train_options, limit=config.train_limit)
        held_out = load(config.eval, options=config.eval_options, limit=config.eval_limit) if config.eval else None
        shown: dict[str, ToolSchemas] = {}
        for row in [*train, *(held_out or ())]:
            # Use the same object for the same tools, because the renderer caches by identity.
            own = tools.schemas if row["tools"] is None else row["tools"]
            row["tools"] = shown.setdefault(json.dumps(own, sort_keys=True), own)

        def of(rows: list[Row]) -> Examples:
            return cls(rows, renderer, max_tokens, pairs, config.trained_turns == "last")

        examples = of(train), of(held_out) if held_out else None
        for key, found in zip(("data.train", "data.eval"), examples, strict=True):
            if found is not None:
                found.check(key)
        return examples

    def __len__(self) -> int:
        return len(self.rows)

    def check(self, key: str) -> None:
        """Raise `UserError`, which names the `key` of the dataset, if none of its rows can be trained."""
        dropped: Counter[str] = Counter()
        shortest = None
        for index in range(len(self)):
            trajectories = self.trajectories(index)
            reason = self._reason_to_drop(trajectories)
            if reason is None:
                return
            dropped[reason] += 1
            if reason == TOO_LONG:
                length = max(map(len, trajectories))
                shortest = length if shortest is None else min(shortest, length)
        what = "pairs" if self.pairs else "conversations"
        fix = (
            "Each needs an answer of the assistant that has text and no `weight: 0`."
            if shortest is None
            else f"The shortest that is too long has {shortest} tokens, but {self.max_tokens} are allowed. Raise "
            "data.max_tokens, and learner.token_budget to at least as much, or train a model with a longer context."
        )
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
        raise UserError(f"None of the {len(self)} {what} of {key} can be trained: {counts}. {fix}")

    def batch(self, indices: Sequence[int]) -> TrainBatch:
        """Return the batch of some rows, without rows that are too long or have nothing to train. It may be empty.

        The two answers of a pair share `Sample.episode`; the better answer has advantage 1, the worse -1.
        """
        samples: list[Sample] = []
        dropped: Counter[str] = Counter()
        for number, index in enumerate(indices):
            trajectories = self.trajectories(index)
            if (reason := self._reason_to_drop(trajectories)) is not None:
                dropped[reason] += 1
                continue
            for advantage, trajectory in zip((1.0, -1.0), trajectories, strict=False):
                samples.append(Sample.from_trajectory(trajectory, advantage, episode=number))
        return TrainBatch(samples, dict(dropped))

    def _reason_to_drop(self, trajectories: Sequence[Trajectory]) -> str | None:
        """Return why a row cannot be trained; None if it can."""
        if max(map(len, trajectories)) > self.max_tokens:
            return TOO_LONG
        return None if all(trajectory.num_sampled for trajectory in trajectories) else NO_SAMPLED_TOKENS

    def trajectories(self, index: int) -> list[Trajectory]:
        """Return the token streams of a row: one, or the better and the worse answer of a pair. Raises `UserError`."""
        row = self.rows[index]
        found = []
        for column in ("chosen", "rejected") if self.pairs else ("messages",):
            trajectory = self._trajectory(row, row[column])
            trajectory.trajectory_id = f"{row['id']}-{column}" if self.pairs else row["id"]
            trajectory.group_id = row["id"] if self.pairs else ""
            found.append(trajectory)
        return found

    def _trajectory(self, row: Row, messages: Sequence[Message]) -> Trajectory:
        context = row["context"]
        if self.last_turn_only:
            context = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
        shown = load_images(messages) if has_row_images(messages) else messages
        try:
            return conversation_trajectory(shown, self.renderer, row["tools"], context=context)
        except ValueError as error:
            raise UserError(f"Row {row['id']!r} of the dataset cannot be trained: {error}.") from error
