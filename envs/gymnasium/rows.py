"""Dataset rows for environments whose only data is a seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentloop.errors import UserError


def seeds(
    *, prompt: str | None = None, num_rows: int = 1024, first_seed: int = 0, system: str | None = None, **columns: Any
) -> Iterator[Mapping[str, Any]]:
    """Yield a row for each of `num_rows` seeds from `first_seed` on. Held-out rows need seeds that no training row has.

        data:
          train: agentloop.envs.gymnasium.rows:seeds
          train_options: {prompt: "Get to the goal.", num_rows: 4096}
          eval: agentloop.envs.gymnasium.rows:seeds
          eval_options: {prompt: "Get to the goal.", num_rows: 100, first_seed: 1000000}

    `prompt` is the user message before the first observation, `system` the system message. All rows get `columns`.
    Raises `UserError`.
    """
    if num_rows < 1 or first_seed < 0:
        raise UserError("`seeds` needs num_rows of at least 1 and first_seed of at least 0.")
    given = {"system": system, "user": prompt}
    messages = [{"role": role, "content": content} for role, content in given.items() if content]
    prompts = {"messages": messages} if messages else {}
    for seed in range(first_seed, first_seed + num_rows):
        yield {**columns, "id": f"seed-{seed}", "seed": seed, **prompts}
