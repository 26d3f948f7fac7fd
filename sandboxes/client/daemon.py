"""`Daemon`: one address of a `SandboxClient`, and what is known of the daemon there."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.base import Execution, ExecutionResult, SandboxBusyError, Session
from agentloop.sandboxes.client import wire
from agentloop.sandboxes.client.http import Connections, GoneError, Reply, UnavailableError

_PROBE_SECONDS = 10.0
_OPEN_SECONDS = 60.0
_FUSION_SLOTS = 32
"""SandboxFusion tells nothing, and bounds nothing: what it is reckoned to run at once."""
_REQUESTS_PER_SLOT = 2
"""Enough for a slot to find its next request waiting. The others wait in the client, where a daemon that goes away
takes none of them along."""
_MARGIN_SECONDS = 15.0
"""For what an execution takes beside queue, compiler and code: setting up, cleaning up, the way."""
_BYTES_PER_SECOND = 1 << 20
"""The slowest way there."""
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
    """A member of a `Fleet`. `max_in_flight`: executions that it gets at once, by default 2 for each of its slots."""

    def __init__(self, url: httpx.URL, token: str | None, max_in_flight: int | None) -> None:
        self.name = str(url.copy_with(username=None, password=None)).rstrip("/")
        self.connections = Connections(url, token)
        self.is_fusion = False
        """SandboxFusion, or another server of its protocol: no sessions."""
        self.slots = 1
        self.in_flight = 0
        self.sessions: set[Session] = set()
        self.problem = ""
        self._max_in_flight = max_in_flight

    @property
    def capacity(self) -> int:
        return self._max_in_flight or max(8, _REQUESTS_PER_SLOT * self.slots)

    @property
    def load(self) -> float:
        # A session is hardly ever busy: it decides between daemons that have as much to do.
        return (self.in_flight + 0.001 * len(self.sessions)) / self.slots

    async def call(self, method: str, path: str, body: bytes | None = None, *, seconds: float) -> bytes:
        """The body of the answer.

        Raises as `Connections.request`; `UnavailableError` for 502 and 503, `SandboxBusyError` for 409, 429 and 504,
        `GoneError` for 404, `UserError` for a request or a token that is refused, `SandboxError` for all else.
        """
        reply = await self.connections.request(method, path, body, seconds=seconds)
        if 200 <= reply.status < 300:
            return reply.body
        raise self._error(reply, path)

    async def look(self) -> None:
        """Find out what answers at this address.

        Raises `UserError` where it is no sandbox daemon or wants another token, `SandboxError` where it does not
        answer or will not for long.
        """
        reply = await self.connections.request("GET", "/v1/ping", seconds=_PROBE_SECONDS)
        if reply.status in (401, 403, 429, 502, 503, 504):
            raise self._error(reply, "/v1/ping")
        if reply.status != 200 or b"pong" not in reply.body[:20]:
            raise UserError(
                f"{self.name} is no sandbox daemon: it answers {reply.status} to /v1/ping. Give the address of an "
                "`agentloop tools serve`, or of a SandboxFusion server, without a path."
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
        """Whether it serves; `problem` is why not. Raises `UserError` as `look` does."""
        try:
            await self.look()
        except SandboxError as error:
            self.problem = str(error)
            return False
        return True

    async def probe(self) -> bool:
        try:
            return await self.is_there()
        except UserError as error:
            self.problem = str(error)
            return False

    async def execute(self, execution: Execution, *, queue: float, waited: float) -> ExecutionResult:
        """Run it here, with at most `queue` seconds in the daemon's queue after the `waited` seconds in the client's.

        Raises as `call`, and `SandboxError` where no answer came in time.
        """
        if self.is_fusion and wire.is_binary(execution.stdin):
            raise UserError(f"{self.name} is SandboxFusion, whose stdin is text: give stdin as UTF-8, or a file.")
        body = wire.execution_body(execution, queue)
        own = execution.compile_timeout + execution.timeout
        # A daemon keeps nobody in its queue for longer than clients of SandboxFusion wait, which is own + 10 s.
        seconds = min(queue, own + 10.0) + own + _MARGIN_SECONDS + len(body) / _BYTES_PER_SECOND
        answer = await self.call("POST", "/run_code", body, seconds=seconds)
        return wire.decode(wire.RunBody, answer).result(waited)

    async def open_session(self, body: bytes) -> str:
        """The id of a new session. Raises as `call`; `UserError` where the server has none."""
        if self.is_fusion:
            raise UserError(
                f"{self.name} is SandboxFusion, which has no sessions: use an `agentloop tools serve`, or a stateless "
                "sandbox (stateful: false)."
            )
        answer = await self.call("POST", "/v1/sessions", body, seconds=_OPEN_SECONDS)
        return wire.decode(wire.SessionBody, answer).id

    async def check_packages(self, names: Sequence[str]) -> None:
        """Raises `UserError` where code cannot import one of these."""
        if not names:
            return
        code = _FIND_MISSING.format(names=list(names))
        result = await self.execute(Execution(code=code, timeout=60.0), queue=60.0, waited=0.0)
        if not result.ok:
            raise UserError(f"The sandbox daemon {self.name} cannot look for packages: {result.stderr[-300:].strip()}")
        if missing := result.stdout.strip():
            raise UserError(
                f"The sandbox daemon {self.name} lacks packages: {missing}. Install them where it runs, and start it "
                "with `--packages`."
            )

    def _error(self, reply: Reply, path: str) -> Exception:
        status, reason = reply.status, wire.detail(reply.body)
        match status:
            case 401 | 403:
                return UserError(
                    f"The sandbox daemon {self.name} refuses the token: set AGENTLOOP_TOKEN, or the option token, to "
                    "the one that it was started with."
                )
            case 400 | 413 | 422:
                return UserError(f"The sandbox daemon {self.name} refuses the request ({status}): {reason}")
            case 404:
                return GoneError(f"{self.name}{path} is not there: {reason}")
            case 502 | 503:
                return UnavailableError(f"The sandbox daemon {self.name} takes no requests now ({status}): {reason}")
            case 409 | 429 | 504:
                return SandboxBusyError(f"The sandbox daemon {self.name} has no room ({status}): {reason}")
        return SandboxError(f"The sandbox daemon {self.name} answers {status} to {path}: {reason}")
