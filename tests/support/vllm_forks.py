"""vLLM whose processes are forks of the process that tests, which has imported it.

An engine core and its worker import vLLM for some 15 s each where they start from nothing, as vLLM wants on CPUs. That
is tested in tests/agentloop/engines/vllm/test_restart.py and tests/trainer/run/test_trained_model.py. Forks are safe
while OpenMP has one thread.
"""

import importlib
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest
import torch

_IMPORTED_BY_WORKERS = [
    "agentloop.engines.vllm.worker",
    "agentloop.weights.copies",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.structured_output.backend_xgrammar",
]


@contextmanager
def forking() -> Iterator[None]:
    """Let this process start vLLM's processes by forks."""
    if torch.cuda.is_available() or os.environ.get("OMP_NUM_THREADS") != "1":
        yield
        return
    from vllm.utils import system_utils

    for module in _IMPORTED_BY_WORKERS:
        with suppress(ImportError):  # an older vLLM
            importlib.import_module(module)
    forks = SimpleNamespace(get_context=lambda method=None: multiprocessing.get_context("fork"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system_utils, "multiprocessing", forks)
        yield


@pytest.fixture(scope="module", autouse=True)
def vllm_forks() -> Iterator[None]:
    """For all tests of a module that imports this."""
    with forking():
        yield
