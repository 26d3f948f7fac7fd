"""Stop the run if too many episodes of a step fail: training on the rest would hide the cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentloop.config.run import RunConfig
from agentloop.errors import FailureKind, UserError, with_fix
from agentloop.types.requests import Group
from agentloop.types.trajectory import Trajectory


def check_failures(trajectories: Sequence[Trajectory], config: RunConfig, *, step: int, folder: str) -> None:
    """Raise `UserError` if more than `run.max_failure_fraction` of a step's episodes failed."""
    failed = [trajectory for trajectory in trajectories if is_failed(trajectory)]
    if len(failed) <= config.run.max_failure_fraction * len(trajectories):
        return
    kinds = Counter(kind for trajectory in failed for kind in trajectory.failures)
    counted = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common())
    cause, count = Counter(map(_cause, failed)).most_common(1)[0]
    row = next(trajectory.task.get("id", "?") for trajectory in failed if _cause(trajectory) == cause)
    raise UserError(
        f"Step {step} stopped: {len(failed)} of {len(trajectories)} episodes failed ({counted}). The most frequent "
        f"cause, {count} times, first on row {row!r}: {with_fix(cause, _advice(kinds, config))} Then resume with "
        f"run.folder={folder}, which has all steps up to {step - 1}."
    )


def _cause(trajectory: Trajectory) -> str:
    return trajectory.error or f"the episode ended as {trajectory.stop_reason}"


def _advice(kinds: Counter[str], config: RunConfig) -> str:
    """Return advice for the most frequent kind of failure."""
    kind = kinds.most_common(1)[0][0] if kinds else FailureKind.ENGINE
    if kind == FailureKind.JUDGE:
        return f"Correct the reward {_reward_name(config)} (env.reward), or the columns of that row."
    if kind == FailureKind.ENV:
        return f"Correct the environment {config.env.factory!r} (env.factory), its tools, or the messages of that row."
    if kind == FailureKind.TOOL:
        return "Correct the tools (env.tools)."
    return f"Check the engine {config.engine.name!r} (engine.options) and its memory."


def _reward_name(config: RunConfig) -> str:
    reward = config.env.reward
    if reward is None:
        return "of the environment"
    return repr(reward) if isinstance(reward, str) else " + ".join(term.shown for term in reward)


def is_failed(trajectory: Trajectory) -> bool:
    """Return whether an episode ended in a failure or could not be scored."""
    return trajectory.reward is None or (trajectory.stop_reason is not None and trajectory.stop_reason.is_failure)


def has_equal_rewards(group: Group) -> bool:
    """Return whether a group has several rewards, all of them equal."""
    rewards = [trajectory.reward for trajectory in group.trajectories if trajectory.reward is not None]
    return len(rewards) > 1 and len(set(rewards)) == 1
