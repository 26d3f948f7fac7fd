"""The tests of `VllmEngine` on CUDA, where vLLM captures graphs and schedules ahead of the device."""

import importlib.util
from pathlib import Path

import pytest

_FILE = Path(__file__).parents[1] / "agentloop" / "engines" / "test_vllm.py"
_spec = importlib.util.spec_from_file_location("agentloop_vllm_tests", _FILE)
assert _spec is not None
assert _spec.loader is not None
_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_tests)

pytestmark = [pytest.mark.gpu, *_tests.pytestmark]
model, engine = _tests.model, _tests.engine


async def test_it_is_cuda_with_graphs_and_async_scheduling(engine):
    config = engine._llm.vllm_config
    assert config.device_config.device_type == "cuda"
    assert not config.model_config.enforce_eager
    assert config.scheduler_config.async_scheduling


globals().update({name: test for name, test in vars(_tests).items() if name.startswith("test_")})
