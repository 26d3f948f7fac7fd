"""`ProgramEpisode`: an agent program as an episode of the agent loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentloop.errors import FailureKind, UserError, raised
from agentloop.gateway.server import Gateway
from agentloop.gateway.session import Sampling, Session
from agentloop.types.limits import StopReason

if TYPE_CHECKING:
    from agentloop.envs.agent.program import AgentProgram, AgentResult, Endpoint
    from agentloop.rollout.loop import AgentLoop
    from agentloop.types.trajectory import Trajectory


class ProgramEpisode:
    """Runs the program under the limits. `trajectory` becomes the token stream of its last turn, with the other
    streams as branches."""

    def __init__(self, loop: AgentLoop, env: AgentProgram, trajectory: Trajectory, seed: int) -> None:
        self.trajectory = trajectory
        self.clock = asyncio.get_running_loop().time
        self._loop = loop
        self._env = env
        self._seed = seed

    async def play(self) -> StopReason:
        """Run the program to its end. Raises `UserError` where no episode could ever work."""
        loop, env = self._loop, self._env
        place = (env.host, env.advertised)
        if place not in loop.gateways:
            loop.gateways[place] = Gateway(loop.engine, loop.renderer, host=env.host, advertised=env.advertised)
        sampling = Sampling(
            temperature=loop.temperature,
            top_p=loop.top_p,
            top_k=loop.top_k,
            stop_strings=loop.stop_strings,
            chosen_by=env.sampling,
        )
        async with loop.gateways[place].session(
            limits=loop.limits, sampling=sampling, trajectory_id=self.trajectory.trajectory_id, seed=self._seed
        ) as (session, endpoint):
            result, reason = await self._run(session, endpoint)
        self._keep(session, result, reason)
        return reason

    async def close(self) -> None:
        """Nothing is left: the session ended with the program."""

    async def _run(self, session: Session, endpoint: Endpoint) -> tuple[AgentResult | None, StopReason]:
        result = None
        error: Exception | None = None
        timeout = asyncio.timeout(self._loop.limits.max_seconds)
        try:
            async with timeout:
                result = await self._env.play(endpoint)
        except UserError:
            raise
        except Exception as problem:  # the program is somebody else's: what it raises ends its own episode
            if timeout.expired() and isinstance(problem, TimeoutError):
                return None, StopReason.MAX_SECONDS
            error = problem
        refused = session.refused
        if refused is not None and (refused.is_failure or error is not None):
            # An answer that was found without the model is none of the model's.
            self.trajectory.error = session.error
            return result, refused
        if error is not None:
            self.trajectory.count(FailureKind.ENV)
            self.trajectory.error = f"the agent raised {raised(error)}"
            return None, StopReason.ENV_ERROR
        return result, StopReason.COMPLETED

    def _keep(self, session: Session, result: AgentResult | None, reason: StopReason) -> None:
        """Put what the session left into `trajectory`."""
        begun = self.trajectory
        streams = session.trajectories()
        for stream in streams:
            stream.group_id, stream.task, stream.stop_reason = begun.group_id, begun.task, reason
            stream.metrics["turns"] = stream.num_turns
        if streams:
            self.trajectory = streams[0]
            self.trajectory.branches = streams[1:]
            self.trajectory.error, self.trajectory.failures = begun.error, begun.failures
        for kind, count in session.failures.items():
            for _ in range(count):
                self.trajectory.count(kind)
        self.trajectory.answer = None if result is None else result.answer
        self.trajectory.metrics |= {
            "turns": session.num_turns,
            "calls": session.num_calls,
            "branches": len(self.trajectory.branches),
            "seconds_generating": session.seconds_generating,
        }
