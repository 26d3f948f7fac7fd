"""Keep the tasks whose prompts are short enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentloop.envs.datasets.images import has_row_images, load_images
from agentloop.errors import UserError

if TYPE_CHECKING:
    from agentloop.rendering.base import Renderer, ToolSchemas

Row = dict[str, Any]


def of_length(rows: list[Row], *, most: int | None, renderer: Renderer, tools: ToolSchemas) -> list[Row]:
    """Return the rows whose prompts have at most `most` tokens, tool schemas and images included.

    Rows without a prompt are kept. Raises `UserError` if no row is left.
    """
    if most is None or not rows:
        return rows
    lengths = [prompt_length(row["messages"], renderer, tools) if "messages" in row else 0 for row in rows]
    kept = [row for row, length in zip(rows, lengths, strict=True) if length <= most]
    if not kept:
        raise UserError(
            f"data.max_prompt_tokens is {most}, but each of the {len(rows)} prompts is longer; the shortest has "
            f"{min(lengths)} tokens. Raise it."
        )
    return kept


def check_one_fits(rows: Sequence[Row], key: str, *, most: int, renderer: Renderer, tools: ToolSchemas) -> None:
    """Raise `UserError` if each of the prompts leaves no room to sample within `most` tokens."""
    lengths: list[int] = []
    for row in rows:
        lengths.append(prompt_length(row["messages"], renderer, tools))
        if lengths[-1] < most:
            return
    if rows:
        raise UserError(
            f"limits.max_tokens is {most}, but each of the {len(rows)} prompts of {key} has at least {min(lengths)} "
            "tokens, tools included, so no episode could sample a token. Raise limits.max_tokens, or shorten the "
            "prompts."
        )


def prompt_length(messages: Sequence[Any], renderer: Renderer, tools: ToolSchemas) -> int:
    """Return the number of tokens of a prompt, tool schemas and images included."""
    return len(renderer.render_prompt(load_images(messages) if has_row_images(messages) else messages, tools))
