"""What of vLLM's sleep is said before anything loads; `test_vllm.py` has turns that wait, `tests/gpu` the memory."""

import pytest
from transformers import Qwen3Config

from agentloop.engines.base import EngineDead
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.engines.vllm.sleep import SleepMode
from agentloop.errors import UserError

pytestmark = pytest.mark.vllm


async def test_sleep_on_cpu_raises(tmp_path):
    Qwen3Config().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"cannot sleep on CPUs.*placement\.sleep=false"):
        await VllmEngine(tmp_path, sleeps=True).start()


class Refusing:
    """A vLLM that has no memory for the parts in `refused`."""

    errored = False

    def __init__(self, refused):
        self.refused = refused
        self.heard = []

    async def sleep(self, level, mode):
        self.heard.append((level, mode))

    async def wake_up(self, tags):
        self.heard.append(tags)
        if self.refused in tags:
            raise RuntimeError("CUDA out of memory")


@pytest.mark.parametrize(("refused", "what"), [("weights", "its weights"), ("kv_cache", "its cache")])
async def test_failed_wake_counts_as_engine_death(refused, what):
    llm, mode = Refusing(refused), SleepMode()
    await mode.begin(llm, keep_weights=False)
    with pytest.raises(EngineDead, match=f"allocate memory for {what}: RuntimeError: CUDA out of memory"):
        await mode.end(llm)
    assert mode.is_on
    assert llm.heard[0] == (2, "keep")
