"""`VerlScore`: reward functions written for verl, used unchanged.

Their signature is `compute_score(data_source, solution_str, ground_truth, extra_info)`.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.envs.rewards.base import Outcome, Reward, answer_of
from agentloop.envs.rewards.texts import assistant_turns, turn_text
from agentloop.errors import UserError, WrongTypeError, named
from agentloop.process.threads import DECODING, REWARDS
from agentloop.registry.named_objects import load_object
from agentloop.types.messages import Message, text_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from agentloop.types.trajectory import Trajectory


class VerlScore(Reward):
    """Reward that calls verl's `custom_reward_function`.

    `function` is its location, 'file.py:compute_score', sync (called in a thread) or async. `reward_kwargs` are further
    arguments. With `tokenizer`, a folder or a name on the hub, `solution_str` is the decoded tokens, as in verl.
    Without it, `solution_str` is the same text built from the messages: turns, calls in `<tool_call>` tags, results in
    `<tool_response>` tags. Raises `UserError` if the function or the tokenizer cannot be loaded.
    """

    def __init__(
        self, *, function: str, reward_kwargs: Mapping[str, Any] | None = None, tokenizer: str | None = None
    ) -> None:
        found = load_object(function, "reward function of verl")
        if not callable(found):
            raise UserError(f"The reward function {function!r} must be callable, got {type(found).__name__}.")
        self._is_async = inspect.iscoroutinefunction(found)
        self.function = found
        self._call = partial(found, **(reward_kwargs or {}))
        self._tokenizer = None if tokenizer is None else _load_tokenizer(tokenizer)

    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> Outcome:
        messages = _response(trajectory)
        extra_info = {
            **(task.get("extra_info") or {}),
            **trajectory.shared_state,
            "num_turns": 1 + len(_by_role(messages)),
            "rollout_reward_scores": {},
            "turn_scores": [],
            "tool_rewards": _tool_rewards(messages, trajectory.turn_rewards),
        }
        call = partial(
            self._call,
            data_source=task.get("data_source"),
            solution_str=_transcript(messages) if self._tokenizer is None else await self._decoded(trajectory),
            ground_truth=answer_of(task),
            extra_info=extra_info,
        )
        return self._outcome(await (call() if self._is_async else REWARDS.run(call)))

    def _outcome(self, result: Any) -> Outcome:
        """Convert verl's result: a number, or a dict with `score` and numbers to log."""
        if not isinstance(result, Mapping):
            return result
        if "score" not in result:
            raise WrongTypeError(
                f"{named(self.function)} returned a dict without 'score': it has {', '.join(map(str, result))}."
            )
        logged = {key: value for key, value in result.items() if key != "score" and isinstance(value, int | float)}
        return {"reward": result["score"], **logged}

    async def _decoded(self, trajectory: Trajectory) -> str:
        """Decode everything after the prompt, without special tokens."""
        assert self._tokenizer is not None
        start = trajectory.segments[0].end if len(trajectory) else 0
        return await DECODING.run(self._tokenizer.decode, list(trajectory.ids[start:]), skip_special_tokens=True)


def _load_tokenizer(name: str) -> Tokenizer:
    from tokenizers import Tokenizer

    file = Path(name).expanduser() / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(file)) if file.is_file() else Tokenizer.from_pretrained(name)
    except Exception as error:  # the library has no specific errors
        raise UserError(
            f"The tokenizer {name!r} of the reward cannot be loaded ({error}). Use a folder with a tokenizer.json, or "
            "the name of a model on a hub that is reachable."
        ) from error


def _response(trajectory: Trajectory) -> list[Message]:
    """Return the model's first turn and all later messages."""
    turns = assistant_turns(trajectory)
    if not turns:
        return []
    first = next(place for place, message in enumerate(trajectory.messages) if message is turns[0])
    return trajectory.messages[first:]


def _tool_rewards(messages: Sequence[Message], turn_rewards: Sequence[float]) -> list[float]:
    """Return the rewards of turns whose calls were answered; with one call per turn these are verl's."""
    answered = [after["role"] == "tool" for turn, after in itertools.pairwise(messages) if turn["role"] == "assistant"]
    return [reward for reward, was in zip(turn_rewards, answered, strict=False) if was]


def _by_role(messages: Sequence[Message]) -> list[tuple[str, list[Message]]]:
    """Group adjacent messages by their role in ChatML, in which tool results come from the user."""
    runs = itertools.groupby(messages, key=lambda message: "user" if message["role"] == "tool" else message["role"])
    return [(str(role), list(run)) for role, run in runs]


def _transcript(messages: Sequence[Message]) -> str:
    """Return the messages in ChatML without special tokens, with role names before all groups except the first."""
    parts: list[str] = []
    for role, run in _by_role(messages):
        parts += [*([role] if parts else []), *map(_text, run)]
    return "\n".join(parts)


def _text(message: Message) -> str:
    if message["role"] == "tool":
        return f"<tool_response>\n{text_of(message['content'])}\n</tool_response>"
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in message.get("tool_calls", ())
    ]
    return "\n".join(filter(None, [turn_text(message), *calls]))
