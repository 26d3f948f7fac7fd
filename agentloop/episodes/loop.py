"""`AgentLoop`: plays an episode of any kind, from the first prompt to the reward, and scores and closes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentloop.envs.agent.program import AgentProgram
from agentloop.envs.players.program import PlayersProgram
from agentloop.envs.returned import check_parts
from agentloop.episodes.overruns import within_limit
from agentloop.episodes.turn_episode import TurnEpisode
from agentloop.errors import FailureKind, WrongTypeError, raised
from agentloop.types.limits import Limits, StopReason
from agentloop.types.requests import Sampling
from agentloop.types.returned_numbers import checked_number
from agentloop.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentloop.engines.base import Engine
    from agentloop.envs.base import BaseEnv, Env
    from agentloop.gateway.episode import ProgramEpisode, ProgramPlayer
    from agentloop.players.episode import PlayersEpisode
    from agentloop.rendering.base import Renderer


class AgentLoop:
    """Plays episodes against one engine. Has no state between episodes, so any number may run at once."""

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        *,
        limits: Limits | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.limits = limits or Limits()
        self.sampling = sampling or Sampling()
        self._programs: ProgramPlayer | None = None

    async def run(
        self,
        env: Env | AgentProgram | PlayersProgram,
        *,
        trajectory_id: str = "",
        group_id: str = "",
        seed: int = 0,
        sampling: Sampling | None = None,
    ) -> Trajectory:
        """Play `env` to its end and score it: `play` with a new trajectory."""
        trajectory = Trajectory(trajectory_id=trajectory_id, group_id=group_id)
        return await self.play(env, trajectory, seed=seed, sampling=sampling)

    async def play(
        self,
        env: Env | AgentProgram | PlayersProgram,
        trajectory: Trajectory,
        *,
        seed: int = 0,
        sampling: Sampling | None = None,
    ) -> Trajectory:
        """Play `env` to its end into an empty trajectory, and score it.

        `trajectory.trajectory_id` must be unique among the episodes in flight. `seed` makes sampling and tools
        repeatable as far as the engine is. `sampling` replaces the loop's. Failures of the engine, the environment, its
        tools and the reward are recorded on the trajectory (`stop_reason`, `failures`, `error`), not raised. Only
        `WrongTypeError`, a value of a wrong type from user code, is raised. Cancelling the coroutine releases
        everything.
        """
        check_parts(env)
        trajectory.task = dict(env.task)
        episode = self._episode(env, trajectory, sampling or self.sampling, seed)
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            stop_reason = await episode.play()
            trajectory = episode.trajectory
            trajectory.stop_reason = stop_reason
            if not any(stream.num_sampled for stream in (trajectory, *trajectory.branches)):
                _fail_without_tokens(trajectory, stop_reason)
            elif not stop_reason.is_failure:
                await _score(env, trajectory, self.limits)
        finally:
            try:
                await episode.close()
            finally:
                await close_env(env, episode.trajectory, self.limits)
                for stream in (episode.trajectory, *episode.trajectory.branches):
                    stream.shared_state.clear()  # it may hold objects that cannot leave the process
        trajectory.metrics["seconds"] = clock() - started
        return trajectory

    def _episode(
        self, env: Env | AgentProgram | PlayersProgram, trajectory: Trajectory, sampling: Sampling, seed: int
    ) -> TurnEpisode | ProgramEpisode | PlayersEpisode:
        """Return the kind of episode that plays `env`: turn by turn, several players, or an agent program."""
        engine, renderer = self.engine, self.renderer
        if isinstance(env, PlayersProgram):
            from agentloop.players.episode import PlayersEpisode

            return PlayersEpisode(engine, renderer, env, trajectory, limits=self.limits, sampling=sampling, seed=seed)
        if not isinstance(env, AgentProgram):
            return TurnEpisode(engine, renderer, env, trajectory, limits=self.limits, sampling=sampling, seed=seed)
        if self._programs is None:
            from agentloop.gateway.episode import ProgramPlayer

            self._programs = ProgramPlayer(engine, renderer)
        return self._programs.episode(env, trajectory, limits=self.limits, sampling=sampling, seed=seed)


def _fail_without_tokens(trajectory: Trajectory, reason: StopReason) -> None:
    """Count an episode without a sampled token as a failure, since there is nothing for a reward to judge."""
    if reason.is_failure:
        return  # already counted
    if reason is StopReason.PROMPT_TOO_LONG:
        error = "the prompt leaves no room to sample: raise limits.max_tokens, or shorten the prompt or the tools."
    else:
        error = f"the episode ended as {reason} before a token was sampled"
    # An agent program may end without a model call.
    is_of_env = reason in (StopReason.PROMPT_TOO_LONG, StopReason.COMPLETED)
    trajectory.count(FailureKind.ENV if is_of_env else FailureKind.ENGINE)
    trajectory.error = trajectory.error or error


async def _score(env: BaseEnv, trajectory: Trajectory, limits: Limits) -> None:
    """Score the episode.

    If the reward function raises, or the result is not finite, `reward` stays None, which is not the same as 0.
    Branches without their own reward get that of the episode.
    """
    try:
        outcome = await within_limit("score", env.score(trajectory), limits, trajectory)
        total = checked_number(checked_number(outcome, env.score) + sum(trajectory.turn_rewards), env.score, "sum")
        for branch in trajectory.branches:
            branch.reward = total if branch.reward is None else checked_number(branch.reward, env.score)
    except WrongTypeError:
        raise
    except Exception as error:
        trajectory.count(FailureKind.JUDGE)
        trajectory.error = f"the reward raised {raised(error)}"
    else:
        trajectory.reward = total


async def close_env(env: BaseEnv, trajectory: Trajectory, limits: Limits) -> None:
    """Close the environment; count a failure to close it."""
    try:
        await within_limit("close", env.close(), limits, trajectory)
    except Exception as error:
        trajectory.count(FailureKind.ENV)
        trajectory.error = trajectory.error or f"close raised {raised(error)}"
