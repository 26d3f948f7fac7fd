"""Memory of an engine that shares a GPU. The worker itself runs only on CUDA (tests/gpu)."""

import types

import pytest
import torch

pytestmark = pytest.mark.vllm

GIB = 1 << 30


def worker(requested, cache=None):
    from agentloop.engines.vllm.gpu_sharing import SharingWorker

    worker = object.__new__(SharingWorker)
    worker.requested_memory = requested
    worker.device = torch.device("cuda", 0)
    worker.profiled = 0

    def profile_run():
        worker.profiled += 1

    worker.model_runner = types.SimpleNamespace(profile_run=profile_run)
    worker.cache_config = types.SimpleNamespace(kv_cache_memory_bytes=cache, gpu_memory_utilization=0.3)
    return worker


def test_cache_gets_the_rest_of_the_engines_gpu_share(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5 * GIB)
    assert worker(30 * GIB).determine_available_memory() == 23 * GIB
    with pytest.raises(ValueError, match=r"0\.3 is 6 GiB of this GPU, but the model needs 7 GiB.*workers\.gpus"):
        worker(6 * GIB).determine_available_memory()


def test_explicit_cache_size_is_passed_to_vllm(monkeypatch):
    from vllm.v1.worker.gpu_worker import Worker

    monkeypatch.setattr(Worker, "determine_available_memory", lambda self: self.cache_config.kv_cache_memory_bytes)
    given = worker(30 * GIB, cache=3 * GIB)
    assert given.determine_available_memory() == 3 * GIB
    assert given.profiled == 0
