"""`ProgramEpisode`: an agent program as an episode of the agent loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop.errors import FailureKind, UserError, raised
from agentloop.gateway.server import Gateway
from agentloop.gateway.session import Session
from agentloop.tools.time_limit import OutOfTimeError, within
from agentloop.types.limits import Limits, StopReason
from agentloop.types.requests import Sampling

if TYPE_CHECKING:
    from agentloop.engines.base import Engine
    from agentloop.envs.agent.interface.endpoint import AgentResult, Endpoint
    from agentloop.envs.agent.program import AgentProgram
    from agentloop.rendering.base import Renderer
    from agentloop.types.trajectory import Trajectory


class ProgramPlayer:
    """Plays agent programs against one engine, with one gateway for each address in their options."""

    def __init__(self, engine: Engine, renderer: Renderer) -> None:
        self._engine = engine
        self._renderer = renderer
        self._gateways: dict[tuple[str, str | None], Gateway] = {}

    def episode(
        self, program: AgentProgram, trajectory: Trajectory, *, limits: Limits, sampling: Sampling, seed: int
    ) -> ProgramEpisode:
        """Return the episode of a program without starting it."""
        address = (program.host, program.advertised)
        if address not in self._gateways:
            host, advertised = address
            self._gateways[address] = Gateway(self._engine, self._renderer, host=host, advertised=advertised)
        return ProgramEpisode(self._gateways[address], program, trajectory, limits, sampling, seed)


class ProgramEpisode:
    """Runs a program under the limits.

    `trajectory` becomes the token stream of its last turn, with the other streams as branches.
    """

    def __init__(
        self,
        gateway: Gateway,
        program: AgentProgram,
        trajectory: Trajectory,
        limits: Limits,
        sampling: Sampling,
        seed: int,
    ) -> None:
        self.trajectory = trajectory
        self._gateway = gateway
        self._program = program
        self._limits = limits
        self._sampling = sampling
        self._seed = seed

    async def play(self) -> StopReason:
        """Run the program to its end. Raises `UserError` if no episode can work."""
        async with self._gateway.session(
            limits=self._limits,
            sampling=self._sampling,
            chosen_by=self._program.sampling,
            trajectory_id=self.trajectory.trajectory_id,
            seed=self._seed,
        ) as (session, endpoint):
            result, reason = await self._run(session, endpoint)
        self._keep(session, result, reason)
        return reason

    async def close(self) -> None:
        """Do nothing: the session ended with the program."""

    async def _run(self, session: Session, endpoint: Endpoint) -> tuple[AgentResult | None, StopReason]:
        result = None
        error: Exception | None = None
        try:
            result = await within(self._limits.max_seconds, self._program.play(endpoint))
        except UserError:
            raise
        except Exception as problem:  # user code: an exception ends its own episode
            is_over_time = isinstance(problem, OutOfTimeError)
            if is_over_time and session.refused is not StopReason.PROMPT_TOO_LONG:  # some agents repeat such a prompt
                return None, StopReason.MAX_SECONDS
            error = problem
        refused = session.refused
        if refused is not None and (refused.is_failure or error is not None):
            # Do not credit answers produced after a refused call.
            self.trajectory.error = session.error
            return result, refused
        if error is not None:
            self.trajectory.count(FailureKind.ENV)
            self.trajectory.error = f"the agent raised {raised(error)}"
            return None, StopReason.ENV_ERROR
        return result, StopReason.COMPLETED

    def _keep(self, session: Session, result: AgentResult | None, reason: StopReason) -> None:
        """Move the streams of the session into `trajectory`."""
        begun = self.trajectory
        streams = session.trajectories()
        for stream in streams:
            stream.group_id, stream.place, stream.task = begun.group_id, begun.place, begun.task
            stream.stop_reason = reason
            stream.metrics["turns"] = stream.num_turns
        if streams:
            self.trajectory = streams[0]
            self.trajectory.branches = streams[1:]
            self.trajectory.error, self.trajectory.failures = begun.error, begun.failures
        for kind, count in session.failures.items():
            for _ in range(count):
                self.trajectory.count(kind)
        self.trajectory.answer = None if result is None else result.answer
        self.trajectory.metrics |= session.metrics | {
            "turns": session.num_turns,
            "calls": session.num_calls,
            "branches": len(self.trajectory.branches),
            "seconds_generating": session.seconds_generating,
        }
