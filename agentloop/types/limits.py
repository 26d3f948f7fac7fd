"""`Limits` of an episode, and `StopReason`, why it ended.

Limits are checked every turn, in this order:

1. `max_turns`: the episode has this many sampled turns                         -> MAX_TURNS
2. `max_seconds`: the wall time is over (this also cuts generation and tools)   -> MAX_SECONDS
3. `max_tokens`: no room is left to sample into                                 -> MAX_TOKENS (turn 1: PROMPT_TOO_LONG)
4. the turn is sampled, but the engine fails                                       -> ENGINE_ERROR
5. the turn was cut: its calls are not run                                      -> MAX_TURN_TOKENS or MAX_TOKENS
6. it has no calls: the environment answers                                     -> COMPLETED or ENV_TRUNCATED
7. it has calls: `max_parallel_calls` of them run, others get a notice, those
   after `max_answered_calls` one together; a tool may end the episode          -> TOOL_STOPPED
8. `max_invalid_turns` turns in a row had only unusable calls                   -> INVALID_CALLS
9. the answers are appended, unless they leave no room in `max_tokens`          -> MAX_TOKENS
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from agentloop.errors import UserError


class StopReason(StrEnum):
    """Why an episode ended."""

    COMPLETED = "completed"
    """The environment ended it (gymnasium's terminated)."""
    ENV_TRUNCATED = "env_truncated"
    """The environment truncated it (gymnasium's truncated)."""
    TOOL_STOPPED = "tool_stopped"
    """A tool result ended it."""
    MAX_TURNS = "max_turns"
    MAX_SECONDS = "max_seconds"
    MAX_TURN_TOKENS = "max_turn_tokens"
    """A turn reached `Limits.max_turn_tokens` without ending."""
    MAX_TOKENS = "max_tokens"
    """The trajectory reached `Limits.max_tokens`."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The first prompt alone leaves no room; nothing was sampled."""
    INVALID_CALLS = "invalid_calls"
    """Too many turns in a row had only unusable calls."""
    ENGINE_ERROR = "engine_error"
    ENV_ERROR = "env_error"
    ABORTED = "aborted"
    """Cancelled from outside."""

    @property
    def is_truncated(self) -> bool:
        """Whether a limit ended the episode, not the model or a failure."""
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
    max_tokens: int | None = None
    """Tokens of the whole trajectory: prompt, sampled and observed. None: as many as the engine takes; in a run also at
    most the model's context and `learner.token_budget`."""
    max_seconds: float = 1800.0
    """Wall time of the episode in seconds, tools included."""
    max_env_seconds: float = 600.0
    """Seconds for one call of the environment's reset, step or close. A longer call counts as a failure of the
    environment."""
    max_reward_seconds: float = 600.0
    """Seconds for scoring the episode. A longer call counts as a failure of the judge."""
    max_invalid_turns: int = 3
    """Consecutive turns whose calls were all unusable (malformed, unknown tool, bad arguments)."""
    max_parallel_calls: int = 8
    """Calls of one turn that run; the rest get a notice."""
    max_answered_calls: int = 16
    """Calls of one turn that get their own answer; later calls, which do not run, share one answer."""
    max_observation_tokens: int = 2048
    """Tokens of one tool result; the middle of a longer one is cut out."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not value > 0:
                raise UserError(f"limits.{item.name} must be above 0, got {value}.")

    def most_tokens(self, allowed: int) -> int:
        """Return the largest number of tokens of an episode, given the number that the engine or the model allows."""
        return allowed if self.max_tokens is None else min(self.max_tokens, allowed)
