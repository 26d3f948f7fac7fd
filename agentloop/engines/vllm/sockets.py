"""A folder for vLLM's sockets: it never removes them, be it closed or killed."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentloop.process import owned_folders

_BASE = "VLLM_RPC_BASE_PATH"
_starting = threading.Lock()
"""vLLM is told by the environment, which all engines of this process share."""


class SocketFolder:
    """Below what VLLM_RPC_BASE_PATH says, else among the temporary folders."""

    def __init__(self) -> None:
        self._path: Path | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """What vLLM starts meanwhile has its sockets there. Removed where that fails."""
        with _starting:
            base = os.environ.get(_BASE)
            self._path = owned_folders.make("agentloop-vllm-", base)
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
        """Nothing where there is none."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
