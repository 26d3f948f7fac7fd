"""`SglangServer`: an SGLang server as a child process that ends with its owner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentloop.engines.base import EngineDead
from agentloop.errors import UserError

INSTALL = (
    "Install it on a machine with a GPU: pip install 'agentloop[sglang]' (SGLang 0.5.17). Or give the `url` of a "
    "running server, or use the vllm or the hf engine."
)
_ENTRY = Path(__file__).with_name("entry.py")
_CLOSING_SECONDS = 10.0
_SHOWN = 3000


class SglangServer:
    """An SGLang server, started by `command` or with this Python, that answers only requests with its random key.

    The key is in a file that only this user can read, and not in the command, which every user of the host can.
    """

    def __init__(self, arguments: Mapping[str, Any], command: Sequence[str] | None = None) -> None:
        self._arguments = arguments
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self.url = ""
        self.key = str(arguments.get("api_key") or secrets.token_urlsafe(32))
        self._key_file: Path | None = None

    async def start(self) -> None:
        """Start the process, which answers much later. Raises `UserError` if SGLang is not installed."""
        if self._command is None and find_spec("sglang") is None:
            raise UserError(f"The sglang engine needs SGLang, which is not installed. {INSTALL}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [*(self._command or (sys.executable, "-P", str(_ENTRY), str(os.getpid())))]
        self._key_file = self._write_key()
        arguments = {**self._arguments, "api_key": None, "config": self._key_file, "host": "127.0.0.1", "port": port}
        for name, value in arguments.items():
            if value is not None and value is not False:
                command.append(f"--{name.replace('_', '-')}")
                command += [] if value is True else [str(value)]
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def _write_key(self) -> Path:
        """Write SGLang's file of options with the key."""
        descriptor, name = tempfile.mkstemp(prefix="agentloop-sglang-", suffix=".yaml")  # readable by this user only
        with open(descriptor, "w") as file:
            json.dump({"api-key": self.key}, file)
        return Path(name)

    def forget_key(self) -> None:
        """Remove the file with the key, which SGLang reads at its start."""
        if self._key_file is not None:
            self._key_file.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise `EngineDead` with the end of its log if it has ended."""
        if self._process is not None and self._process.returncode is not None:
            raise EngineDead(f"the SGLang server ended with status {self._process.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        """Return the end of its log."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _SHOWN))
        return self._log.read().decode(errors="replace").strip() or "its log is empty"

    async def stop(self) -> None:
        """End the process and all of its children."""
        process = self._process
        if process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _CLOSING_SECONDS)
        self.forget_key()
        self._log.close()
