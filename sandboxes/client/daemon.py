"""`Daemon`: one address of a `SandboxClient` and the state of the daemon there."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import httpx

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.client import wire
from agentloop.sandboxes.client.http import AnswerLostError, Connections, GoneError, Reply, UnavailableError
from agentloop.sandboxes.interface.sandbox import Execution, ExecutionResult, SandboxBusyError, Session

_logger = logging.getLogger(__name__)

_PROBE_SECONDS = 10.0
_OPEN_SECONDS = 60.0
_FUSION_SLOTS = 32
"""Number of slots to assume for SandboxFusion, which reports none and has no limit."""
_REQUESTS_PER_SLOT = 2
"""Number of requests in flight for each slot: enough for a slot to find its next request waiting. Further requests wait
in the client, where they survive the loss of a daemon."""
_BYTES_PER_SECOND = 1 << 20
"""Slowest upload that timeouts allow for, in bytes per second."""
_FIND_MISSING = """
from importlib import metadata, util
def there(name):
    try:
        return bool(metadata.distribution(name))
    except metadata.PackageNotFoundError:
        return util.find_spec(name.replace("-", "_")) is not None
print(*[name for name in {names} if not there(name)])
"""


class Daemon:
    """A member of a `Fleet`. `max_in_flight`: executions that it gets at once, by default 2 for each of its slots.

    `packages`: packages that code must be able to import there.
    """

    margin_seconds = 15.0
    """Seconds for setup, cleanup and transfer, in addition to queue, compiler and code."""

    def __init__(self, url: httpx.URL, token: str | None, max_in_flight: int | None, packages: Sequence[str]) -> None:
        self.name = str(url.copy_with(username=None, password=None)).rstrip("/")
        self.connections = Connections(url, token)
        self.is_fusion = False
        """Whether the daemon is SandboxFusion or another server of its protocol, which has no sessions."""
        self.slots = 1
        self.in_flight = 0
        self.sessions: set[Session] = set()
        self.problem = ""
        self._max_in_flight = max_in_flight
        self._packages = list(packages)

    @property
    def capacity(self) -> int:
        return self._max_in_flight or max(8, _REQUESTS_PER_SLOT * self.slots)

    @property
    def load(self) -> float:
        # A session is rarely busy, so sessions only break ties.
        return (self.in_flight + 0.001 * len(self.sessions)) / self.slots

    async def call(self, method: str, path: str, body: bytes | None = None, *, seconds: float) -> bytes:
        """Send a request and return the body of the answer.

        Raises the errors of `Connections.request`; `UnavailableError` for 502 and 503, `SandboxBusyError` for 409, 429
        and 504, `AnswerLostError` for the 504 of a proxy, `GoneError` for 404, `UserError` for a refused request or
        token, `SandboxError` for everything else.
        """
        reply = await self.connections.request(method, path, body, seconds=seconds)
        if 200 <= reply.status < 300:
            return reply.body
        raise self._error(reply, path)

    async def look(self) -> None:
        """Detect which kind of daemon answers at this address.

        Raises `UserError` if it is not a sandbox daemon or expects another token, `SandboxError` if it does not answer
        or is shutting down.
        """
        reply = await self.connections.request("GET", "/v1/ping", seconds=_PROBE_SECONDS)
        if reply.status in (401, 403, 429, 502, 503, 504):
            raise self._error(reply, "/v1/ping")
        if reply.status != 200 or b"pong" not in reply.body[:20]:
            raise UserError(
                f"{self.name} is not a sandbox daemon: it answers {reply.status} to /v1/ping. Give the address of an "
                "`agentloop tools serve` or of a SandboxFusion server, without a path."
            )
        try:
            body = await self.call("GET", "/v1/health", seconds=_PROBE_SECONDS)
        except GoneError:
            self.is_fusion, self.slots = True, _FUSION_SLOTS
            return
        health = wire.decode(wire.HealthBody, body)
        self.is_fusion, self.slots = False, health.slots
        if health.draining:
            raise UnavailableError(f"The sandbox daemon {self.name} is shutting down.")

    async def is_there(self) -> bool:
        """Return whether the daemon serves; if not, `problem` is the reason. Raises the `UserError` of `look`."""
        try:
            await self.look()
        except SandboxError as error:
            self.problem = str(error)
            return False
        return True

    async def probe(self) -> bool:
        try:
            if not await self.is_there():
                return False
            await self.check_packages()
        except (SandboxError, UserError) as error:
            if isinstance(error, UserError) and self.problem != str(error):
                _logger.warning("%s is not used: %s", self.name, error)
            self.problem = str(error)
            return False
        return True

    async def execute(self, execution: Execution, *, queue: float, waited: float) -> ExecutionResult:
        """Run an execution, which may wait `queue` seconds in the daemon after `waited` seconds in the client.

        Raises the errors of `call`, and `SandboxError` if no answer came in time.
        """
        if self.is_fusion and wire.is_binary(execution.stdin):
            raise UserError(f"{self.name} is SandboxFusion, whose stdin is text: give stdin as UTF-8, or as a file.")
        body = wire.execution_body(execution, queue)
        own = execution.compile_timeout + execution.timeout
        # A daemon queues a request only as long as clients of SandboxFusion wait, which is own + 10 s.
        seconds = min(queue, own + 10.0) + own + self.margin_seconds + len(body) / _BYTES_PER_SECOND
        answer = await self.call("POST", "/run_code", body, seconds=seconds)
        return wire.decode(wire.RunBody, answer).result(waited)

    async def open_session(self, body: bytes) -> str:
        """Open a session and return its id. Raises the errors of `call`; `UserError` if the server has no sessions."""
        if self.is_fusion:
            raise UserError(
                f"{self.name} is SandboxFusion, which has no sessions: use an `agentloop tools serve`, or a stateless "
                "sandbox (stateful: false)."
            )
        answer = await self.call("POST", "/v1/sessions", body, seconds=_OPEN_SECONDS)
        return wire.decode(wire.SessionBody, answer).id

    async def check_packages(self) -> None:
        """Raise `UserError` if code cannot import one of the packages, and the errors of `execute`."""
        if not self._packages:
            return
        code = _FIND_MISSING.format(names=self._packages)
        result = await self.execute(Execution(code=code, timeout=60.0), queue=60.0, waited=0.0)
        if not result.ok:
            raise UserError(f"Cannot check the packages of sandbox daemon {self.name}: {result.stderr[-300:].strip()}")
        if missing := result.stdout.strip():
            raise UserError(
                f"The sandbox daemon {self.name} lacks packages: {missing}. Install them on its machine and start it "
                "with `--packages`."
            )

    def _error(self, reply: Reply, path: str) -> Exception:
        status, reason = reply.status, wire.detail(reply.body)
        match status:
            case 401:
                return UserError(
                    f"The sandbox daemon {self.name} refuses the token: set AGENTLOOP_TOKEN, or the option token, to "
                    f"the token that the daemon was started with. It answers: {reason}"
                )
            case 400 | 403 | 413 | 422:
                return UserError(f"The sandbox daemon {self.name} refuses the request ({status}): {reason}")
            case 404:
                return GoneError(f"{self.name}{path} does not exist: {reason}")
            case 502 | 503:
                return UnavailableError(f"The sandbox daemon {self.name} accepts no requests now ({status}): {reason}")
            case 504 if not self.is_fusion and not wire.has_detail(reply.body):
                return AnswerLostError(
                    f"A proxy in front of the sandbox daemon gave up waiting for its answer ({status}): give it a read "
                    f"timeout above the time limits of the code (nginx: proxy_read_timeout)."
                )
            case 409 | 429 | 504:
                return SandboxBusyError(f"The sandbox daemon {self.name} has no room ({status}): {reason}")
        return SandboxError(f"The sandbox daemon {self.name} answers {status} to {path}: {reason}")
