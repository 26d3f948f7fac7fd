"""`SocketFolder`: a folder for vLLM's sockets, which vLLM never removes."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentloop.process import owned_folders

_BASE = "VLLM_RPC_BASE_PATH"
_UUID = 36
"""Bytes in the name of a socket."""
_starting = threading.Lock()
"""Held while VLLM_RPC_BASE_PATH is changed, because all engines of this process share the environment."""


class SocketFolder:
    """A folder below VLLM_RPC_BASE_PATH, or below the temporary folder if that is not set, or in /tmp if it is long."""

    def __init__(self) -> None:
        self._path: Path | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Create the folder for processes that vLLM starts in this block; remove it if the start fails."""
        with _starting:
            base = os.environ.get(_BASE)
            self._path = owned_folders.make("agentloop-vllm-", base, longest_socket=_UUID)
            os.environ[_BASE] = str(self._path)
            try:
                yield
            except BaseException:
                self.remove()
                raise
            finally:
                del os.environ[_BASE]
                if base is not None:
                    os.environ[_BASE] = base

    def remove(self) -> None:
        """Remove the folder if there is one."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
