"""Calls to an engine for boxes. Every call blocks, so do not call these on an event loop."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from agentloop.boxes.copies import archive_limit, pack_tree, too_large
from agentloop.boxes.images.store import BUILTIN, ImageStore
from agentloop.boxes.interface.box import BoxError, BoxLostError
from agentloop.boxes.interface.spec import BoxSpec, Image
from agentloop.errors import SandboxError, UserError
from agentloop.process.owned_folders import is_dead, own_label
from agentloop.sandboxes.levels.docker_engine import OWNER_LABEL, Engine, call

if TYPE_CHECKING:
    from collections.abc import Iterator

_LABEL = "agentloop.box"
_FIRST_PROCESS = ("/bin/sh", "-c", "while read -r line; do (:); done")
"""First process of a box. Each line that the owner writes makes it reap orphans that have ended. It ends when the
owner's connection closes, and the box ends with it."""
_CAPABILITIES = ("SYS_PTRACE",)
"""Lets root in a box read the environment of other users' processes, which marks the processes of a command."""
_ENDED = re.compile(
    "no such (container|exec)|no (container|exec session) with|is not running|has been stopped", re.IGNORECASE
)
_NETWORKS = {"none": "none", "allowlist": "none", "public": "bridge"}
_CHUNK = 1 << 20
_READ_AHEAD = 1 << 16
"""Number of bytes above the size of an answer's buffer."""
_DIRECTORY = 1 << 31
"""Directory bit of a file mode in Go, the engine's language."""


class BoxEngine:
    """A connection to the engine of this machine."""

    def __init__(self, engine: Engine, columns: str = "-eo pid,stat,args") -> None:
        """`columns` asks the engine for ids, states and commands of processes."""
        self._columns = columns
        self._engine = engine
        self._api: Any = self._engine.client.api

    def image(self, image: Image) -> tuple[str, str | None]:
        """Return the id and the user of an image, after pulling, building or importing it if it is missing.

        Raises `UserError`.
        """
        try:
            if image.reference is not None and image.reference.startswith(BUILTIN):
                found = self._import(Path(ImageStore().get(image).layers[0]))
            elif image.reference is not None:
                found = self._find(image.reference) or call(self._engine.client.images.pull, image.reference)
            elif image.dockerfile is not None:
                found = self._build(image.dockerfile)
            else:
                found = self._import(image.tarball or image.tree)
        except SandboxError as error:
            raise UserError(f"The image of a box is unavailable: {error}.") from error
        return str(found.id), found.attrs["Config"].get("User") or None

    def _find(self, name: str) -> Any:
        import docker

        try:
            return call(self._engine.client.images.get, name)
        except SandboxError as error:
            if isinstance(error.__cause__, docker.errors.ImageNotFound):
                return None
            raise

    def _build(self, folder: Path) -> Any:
        if not (folder / "Dockerfile").is_file():
            raise UserError(f"The image's Dockerfile {folder / 'Dockerfile'} does not exist: correct its path.")
        built, _ = call(self._engine.client.images.build, path=str(folder), rm=True, forcerm=True)
        return built

    def _import(self, path: Path | None) -> Any:
        assert path is not None
        if not path.exists():
            raise UserError(f"The image {path} does not exist: correct its path.")
        with path.open("rb") if path.is_file() else pack_tree(path) as source:
            name, tag = "localhost/agentloop-box", hashlib.file_digest(source, "sha256").hexdigest()[:20]
            if (found := self._find(f"{name}:{tag}")) is None:
                source.seek(0)
                answer = call(self._api.import_image_from_data, source)
                made = json.loads(answer.splitlines()[-1])["status"]
                call(self._api.tag, made, name, tag)  # podman would ignore the tag of an import
                found = self._find(f"{name}:{tag}")
        return found

    def limits_storage(self) -> bool:
        """Return whether this engine can limit what a box writes."""
        info = call(self._engine.client.info)
        status = {str(name): str(value) for name, value in info.get("DriverStatus") or ()}
        return info["Driver"] in ("btrfs", "zfs") or (
            info["Driver"] == "overlay2" and status.get("Backing Filesystem") == "xfs"
        )

    def start(self, name: str, image: str, spec: BoxSpec, storage_mb: int | None) -> tuple[str, socket.socket]:
        """Start a box; return its id and the connection whose closing ends it. Raises `BoxError`."""
        memory = f"{spec.memory_mb}m" if spec.memory_mb else None
        try:
            made = call(
                self._api.create_container,
                image,
                entrypoint=[],
                command=list(_FIRST_PROCESS),
                name=name,
                hostname=name,
                labels={OWNER_LABEL: own_label(), _LABEL: "box"},
                stdin_open=True,
                environment=dict(spec.env),
                working_dir=spec.workdir,
                user="0:0",
                host_config=self._api.create_host_config(
                    auto_remove=True,
                    cap_add=list(_CAPABILITIES),
                    network_mode=_NETWORKS[spec.network.mode],
                    mem_limit=memory,
                    memswap_limit=memory,
                    pids_limit=spec.processes + 1,
                    nano_cpus=int(spec.cpus * 1e9) if spec.cpus else None,
                    storage_opt={"size": f"{storage_mb}m"} if storage_mb else None,
                    log_config={"Type": "none"},
                ),
            )["Id"]
            connection, _ = _raw(call(self._api.attach_socket, made, params={"stdin": 1, "stream": 1}))
            call(self._api.start, made)
        except SandboxError as error:
            self.remove(name)
            raise BoxError(f"A box could not be started: {error}.") from error
        return str(made), connection

    def execute(
        self,
        box: str,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bool = False,
        tty: bool = False,
    ) -> tuple[str, socket.socket, bytes]:
        """Start a command; return its id, the connection to its streams, and output already read. Raises `BoxError`."""
        with _raising_box_errors(box):
            made = call(
                self._api.exec_create,
                box,
                list(argv),
                stdin=stdin,
                tty=tty,
                workdir=cwd,
                environment=dict(env or {}),
                user=user or "",
            )["Id"]
            return str(made), *_raw(call(self._api.exec_start, made, socket=True, tty=tty))

    def status(self, box: str, command: str) -> int | None:
        """Return the exit status of a command; None while it runs. Raises `BoxError`."""
        with _raising_box_errors(box):
            found = call(self._api.exec_inspect, command)
        return None if found["Running"] or found["ExitCode"] is None else int(found["ExitCode"])

    def resize(self, box: str, command: str, lines: int, columns: int) -> None:
        """Set the size of a command's terminal. Raises `BoxError`."""
        with _raising_box_errors(box):
            call(self._api.exec_resize, command, height=lines, width=columns)

    def put(self, box: str, stream: IO[bytes], folder: str) -> None:
        """Unpack a tar stream in a directory of a box. Raises `BoxError`."""
        with _raising_box_errors(box):
            call(self._api.put_archive, box, folder, stream)

    def get(self, box: str, path: str, target: IO[bytes], max_bytes: int) -> tuple[bool, str]:
        """Write a file or directory of a box to `target` as a tar stream. Raises `BoxError`.

        Returns whether it is a directory, and its name in the stream.
        """
        with _raising_box_errors(box), closing(call(self._open_archive, box, path)) as archive:
            chunks = archive.iter_content(_CHUNK)
            while chunk := call(next, chunks, b""):
                target.write(chunk)
                if target.tell() > archive_limit(max_bytes):
                    raise too_large(path, max_bytes)
            found = json.loads(base64.b64decode(archive.headers["X-Docker-Container-Path-Stat"]))
            return bool(int(found["mode"]) & _DIRECTORY), str(found["name"])

    def _open_archive(self, box: str, path: str) -> Any:
        """Return a response with a tar stream of a path. Until it is closed, the engine keeps other calls waiting.

        `APIClient.get_archive` does not close it if the stream is not read to its end.
        """
        import docker
        import requests

        url = f"{self._api.base_url}/v{self._api.api_version}/containers/{box}/archive"
        headers = {"Accept-Encoding": "identity"}
        response = self._api.get(url, params={"path": path}, headers=headers, stream=True, timeout=self._api.timeout)
        try:
            response.raise_for_status()
        except requests.HTTPError as error:
            docker.errors.create_api_error_from_http_exception(error)  # raises
        return response

    def check_runs(self, box: str) -> None:
        """Raise `BoxLostError` if a box has ended, `BoxError` if the engine does not answer."""
        with _raising_box_errors(box):
            if not call(self._api.inspect_container, box)["State"]["Running"]:
                raise BoxLostError(_ended_message(box))

    def pid(self, box: str) -> int:
        """Return the pid of the first process of a box, on the machine of the engine. Raises `BoxError`."""
        with _raising_box_errors(box):
            return int(call(self._api.inspect_container, box)["State"]["Pid"])

    def processes(self, box: str) -> list[str]:
        """Return the commands of all processes but the first, as the engine sees them. Raises `BoxError`."""
        with _raising_box_errors(box):
            found = call(self._api.top, box, self._columns)
        if found["Processes"] is None:  # the box has just ended
            raise BoxLostError(_ended_message(box))
        rows = [row[-1] for row in found["Processes"] if not row[1].startswith("Z")]
        return rows[1:]

    def commit(self, box: str) -> str:
        """Make an image of the files of a box, and return its id. Raises `BoxError`."""
        labels = [f'LABEL "{OWNER_LABEL}"="{own_label()}"', f'LABEL "{_LABEL}"="fork"']
        with _raising_box_errors(box):
            return str(call(self._api.commit, box, changes=labels)["Id"])

    def remove(self, box: str) -> None:
        """End a box with everything in it, if it still exists. Raises `SandboxError`."""
        for _ in range(10):
            with suppress(SandboxError):  # podman refuses while the box is ending
                self._engine.remove(box)
                return
            time.sleep(0.1)
        self._engine.remove(box)

    def remove_image(self, image: str) -> None:
        """Remove an image, if it still exists."""
        import docker

        try:
            call(self._api.remove_image, image, force=True)
        except SandboxError as error:
            if not isinstance(error.__cause__, docker.errors.APIError):
                raise

    def remove_leftovers(self) -> None:
        """Remove boxes and copies of boxes whose owners are dead."""
        self._engine.remove_leftovers()
        for image in call(self._api.images, filters={"label": f"{_LABEL}=fork"}):
            if is_dead(image["Labels"][OWNER_LABEL]):
                self.remove_image(image["Id"])

    def close(self) -> None:
        self._engine.close()


def _raw(connection: Any) -> tuple[socket.socket, bytes]:
    """Return the socket of a connection that the SDK has opened, and the bytes that the SDK has already read.

    The SDK's objects would close the socket that they hold, so the result has a descriptor of its own. Output that
    arrives together with the headers of the answer is in the buffer of the answer, no longer in the socket.
    """
    wrapped: socket.socket = getattr(connection, "_sock", connection)
    wrapped.setblocking(False)
    early = connection._response.raw._fp.fp.read1(_READ_AHEAD)
    return socket.fromfd(wrapped.fileno(), wrapped.family, wrapped.type), early


@contextmanager
def _raising_box_errors(box: str) -> Iterator[None]:
    """Raise `BoxLostError` if the engine does not know the box or does not run it, `BoxError` for any other error."""
    import docker

    try:
        yield
    except BoxError:
        raise
    except SandboxError as error:
        text = str(error)
        if isinstance(error.__cause__, docker.errors.APIError) and _ENDED.search(text):
            raise BoxLostError(_ended_message(box)) from error
        if found := re.search("unable to find user ([^:]+):", text):
            raise BoxError(f"The box has no user {found[1]!r}.") from error
        raise BoxError(text) from error


def _ended_message(box: str) -> str:
    return f"The box {box} has ended, and its files are lost."
