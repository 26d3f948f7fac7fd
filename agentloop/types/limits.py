"""What bounds an episode, and why it ended. A leaf: imports nothing of agentloop.

The one order of checks, for every turn:

1. `max_turns`: as many turns were sampled as are allowed                       -> MAX_TURNS
2. `max_seconds`: the wall time is over (also cuts generation and tools)        -> MAX_SECONDS
3. `max_tokens`: no room is left to sample into                                 -> MAX_TOKENS (turn 1: PROMPT_TOO_LONG)
4. the turn is sampled; the engine failed                                       -> ENGINE_ERROR
5. the turn was cut: its calls are not run                                      -> MAX_TURN_TOKENS or MAX_TOKENS
6. no calls in it: the environment answers                                      -> COMPLETED or ENV_TRUNCATED
7. calls: `max_parallel_calls` of them run, each one above that is answered with a notice;
   a tool may end the episode                                                   -> TOOL_STOPPED
8. every call was unusable, in so many turns in a row (`max_invalid_turns`)     -> INVALID_CALLS
9. the answers are appended; where they leave no room in `max_tokens` they are left out
                                                                                -> MAX_TOKENS
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from agentloop.errors import UserError


class StopReason(StrEnum):
    """Why an episode ended."""

    COMPLETED = "completed"
    """The environment said that it is over (gymnasium's terminated)."""
    ENV_TRUNCATED = "env_truncated"
    """The environment cut it (gymnasium's truncated)."""
    TOOL_STOPPED = "tool_stopped"
    """A tool result asked to stop."""
    MAX_TURNS = "max_turns"
    MAX_SECONDS = "max_seconds"
    MAX_TURN_TOKENS = "max_turn_tokens"
    """A turn reached `Limits.max_turn_tokens` without ending."""
    MAX_TOKENS = "max_tokens"
    """The trajectory reached `Limits.max_tokens`."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The first prompt alone leaves no room; nothing was sampled."""
    INVALID_CALLS = "invalid_calls"
    """Too many turns in a row whose calls could not be used."""
    ENGINE_ERROR = "engine_error"
    ENV_ERROR = "env_error"
    ABORTED = "aborted"
    """Cancelled from outside."""

    @property
    def is_truncated(self) -> bool:
        """Ended by a limit, not by the model or by a failure."""
        return self in _TRUNCATED

    @property
    def is_failure(self) -> bool:
        return self in (StopReason.ENGINE_ERROR, StopReason.ENV_ERROR, StopReason.ABORTED)


_TRUNCATED = frozenset(
    {
        StopReason.ENV_TRUNCATED,
        StopReason.MAX_TURNS,
        StopReason.MAX_SECONDS,
        StopReason.MAX_TURN_TOKENS,
        StopReason.MAX_TOKENS,
        StopReason.PROMPT_TOO_LONG,
    }
)


@dataclass(slots=True, frozen=True, kw_only=True)
class Limits:
    """Bounds of one episode. The module's docstring gives the order in which they are checked."""

    max_turns: int = 16
    """Turns that the model may sample."""
    max_turn_tokens: int = 4096
    """Tokens that one turn may sample."""
    max_tokens: int = 16384
    """Tokens of the whole trajectory: prompt, sampled and observed."""
    max_seconds: float = 1800.0
    """Wall time of the episode, tools included."""
    max_invalid_turns: int = 3
    """Turns in a row in which every call was unusable (malformed, unknown tool, bad arguments)."""
    max_parallel_calls: int = 8
    """Calls of one turn that are run; those above are answered with a notice."""
    max_observation_tokens: int = 2048
    """Tokens of one tool result; the middle of a longer one is cut out."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not value > 0:
                raise UserError(f"limits.{item.name} must be above 0, got {value}.")
