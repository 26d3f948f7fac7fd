"""`PlayersEpisode`: an episode of several players.

Each seat with a model has a `Session`, like an agent program: its conversations become exact token streams. The streams
of the first seat that learns are the trajectory; streams of other seats are branches with their own rewards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from agentloop.envs.players.player import Player, PlayerStopped, ScriptedPlayer
from agentloop.envs.players.program import PlayersProgram, Seat
from agentloop.errors import EngineError, EnvError, EpisodeError, FailureKind, UserError, raised
from agentloop.gateway.session import Session
from agentloop.gateway.turns.completions import message_of
from agentloop.gateway.turns.errors import ApiError
from agentloop.gateway.turns.messages import conversation_keys, key_of_tools
from agentloop.gateway.turns.requests import ModelRequest
from agentloop.players.opponents import opponent_of
from agentloop.registry.named_objects import load_object
from agentloop.tools.time_limit import OutOfTimeError, within
from agentloop.types.limits import Limits, StopReason
from agentloop.types.messages import Message
from agentloop.types.requests import Sampling
from agentloop.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentloop.engines.base import Engine
    from agentloop.rendering.base import Renderer


_MOST_SEATS = 1009
"""Factor that separates the seeds of seats in different episodes."""


class ModelPlayer(Player):
    """A player whose turns a model samples."""

    def __init__(self, name: str, session: Session, *, learns: bool) -> None:
        super().__init__(name, learns=learns)
        self.session = session

    async def turn(self, messages: Sequence[Message]) -> Message:
        keys = conversation_keys(messages, key_of_tools(""))
        request = ModelRequest(model="policy", messages=list(messages), keys=keys, tools=[])
        try:
            completion = await self.session.complete(request)
        except ApiError as error:
            if self.session.refused is None:
                raise EnvError(f"the request to player {self.name} was rejected: {error.message}") from error
            if self.session.refused.is_failure:
                raise EngineError(f"the engine gave player {self.name} no turn: {error.message}") from error
            raise PlayerStopped(self.name, self.session.refused, error.message) from error
        return message_of(completion.parsed)


class PlayersEpisode:
    """Runs a program of several players under the limits."""

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        program: PlayersProgram,
        trajectory: Trajectory,
        *,
        limits: Limits,
        sampling: Sampling,
        seed: int,
    ) -> None:
        self.trajectory = trajectory
        self._policy = engine, renderer
        self._program = program
        self._limits = limits
        self._sampling = sampling
        self._seed = seed
        self._sessions: dict[str, Session] = {}

    async def play(self) -> StopReason:
        """Play the program to its end. Raises `UserError` if no episode could ever work."""
        try:
            reason = await self._run()
        finally:
            for session in self._sessions.values():
                await session.close()
        self._keep(reason)
        return reason

    async def close(self) -> None:
        """Do nothing: the sessions ended with the program."""

    async def _run(self) -> StopReason:
        """Return the stop reason. An episode in which an engine failed gets no reward."""
        reason = await self._run_program()
        for session in self._sessions.values():
            if session.refused is not None and session.refused.is_failure:
                self.trajectory.error = session.error
                return session.refused
        return reason

    async def _run_program(self) -> StopReason:
        try:
            await within(self._limits.max_seconds, self._play_with_players())
        except UserError:
            raise
        except OutOfTimeError:
            return StopReason.MAX_SECONDS
        except PlayerStopped as stopped:
            return stopped.reason
        except EpisodeError as error:
            if not any(session.failures[error.kind] for session in self._sessions.values()):
                self.trajectory.count(error.kind)
            self.trajectory.error = str(error)
            return StopReason.ENGINE_ERROR if isinstance(error, EngineError) else StopReason.ENV_ERROR
        except Exception as error:  # user code: an exception ends its own episode
            self.trajectory.count(FailureKind.ENV)
            self.trajectory.error = f"the program of the players raised {raised(error)}"
            return StopReason.ENV_ERROR
        return StopReason.COMPLETED

    async def _play_with_players(self) -> None:
        """Create the players, which may start engines, and run the program."""
        seats = self._program.seats(self.trajectory.place, self._seed)
        players = {name: await self._player(name, number, seats[name]) for number, name in enumerate(seats)}
        await self._program.play(players)

    async def _player(self, name: str, number: int, seat: Seat) -> Player:
        """Return the player of a seat; the same policy in two seats samples with different seeds."""
        seed = self._seed * _MOST_SEATS + number
        if seat.script is not None:
            return ScriptedPlayer(name, load_object(seat.script, "player"), seed)
        engine, renderer = self._policy if seat.learns else await opponent_of(seat, self._seed)
        session = Session(
            engine,
            renderer,
            limits=self._limits,
            sampling=self._sampling,
            trajectory_id=f"{self.trajectory.trajectory_id}.{name}",
            seed=seed,
        )
        self._sessions[name] = session
        return ModelPlayer(name, session, learns=seat.learns)

    def _keep(self, reason: StopReason) -> None:
        """Move the token streams of the players that learn into `trajectory`."""
        begun = self.trajectory
        learners = self._program.seats(begun.place, self._seed)
        streams: list[Trajectory] = []
        for name, session in self._sessions.items():
            if not learners[name].learns:
                continue
            for stream in session.trajectories():
                stream.role = name
                if not reason.is_failure:
                    with suppress(LookupError):  # the program did not finish
                        stream.reward = self._program.reward_of(name)
                streams.append(stream)
        for stream in streams:
            stream.group_id, stream.place, stream.task = begun.group_id, begun.place, begun.task
            stream.stop_reason = reason
            stream.metrics["turns"] = stream.num_turns
        if streams:
            self.trajectory = streams[0]
            self.trajectory.trajectory_id = begun.trajectory_id
            self.trajectory.branches = streams[1:]
            self.trajectory.error, self.trajectory.failures = begun.error, begun.failures
        self._measure(learners)

    def _measure(self, seats: Mapping[str, Seat]) -> None:
        """Record metrics of the policy's sessions and the reward of each seat."""
        trajectory = self.trajectory
        own = [session for name, session in self._sessions.items() if seats[name].learns]
        for session in self._sessions.values():
            for kind in (FailureKind.MODEL, FailureKind.ENGINE) if session in own else (FailureKind.ENGINE,):
                for _ in range(session.failures[kind]):
                    trajectory.count(kind)
        trajectory.metrics |= {
            "turns": sum(session.num_turns for session in own),
            "branches": len(trajectory.branches),
            "seconds_generating": sum(session.seconds_generating for session in own),
        }
        for stream in (trajectory, *trajectory.branches):
            if stream.reward is not None:
                trajectory.metrics[f"reward/{stream.role}"] = stream.reward
