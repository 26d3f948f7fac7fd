"""Arguments with which vLLM starts."""

import json

import pytest

from agentloop.errors import UserError

pytestmark = pytest.mark.vllm


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    from vllm.platforms import current_platform

    from agentloop.engines.vllm.launch import VllmLauncher

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))

    def arguments(*, on_cpu=False, **given):
        monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: on_cpu)
        given = {"enforce_eager": None, "tensor_parallel_size": 1} | given
        launcher = VllmLauncher(str(tmp_path), given, shares_gpu=True, sleeps=False, max_pixels=None)
        return launcher._arguments({"cudagraph_capture_sizes"})

    return arguments


def test_the_model_has_a_process_of_its_own_on_one_gpu(arguments):
    assert arguments()["distributed_executor_backend"] == "mp"
    assert arguments(distributed_executor_backend="uni")["distributed_executor_backend"] == "uni"


@pytest.mark.parametrize("given", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}, {"on_cpu": True}])
def test_vllm_chooses_the_executor_elsewhere(arguments, given):
    assert "distributed_executor_backend" not in arguments(**given)


def test_an_engine_that_shares_its_gpu_counts_its_own_memory(arguments):
    assert arguments()["worker_cls"].endswith("SharingWorker")
    assert "worker_cls" not in arguments(on_cpu=True)


def test_layers_can_be_left_out_of_fp8(arguments):
    ignored = arguments(quantization="fp8", quantization_config={"ignore": ["model.layers.0.mlp.down_proj"]})
    assert ignored["quantization_config"] == {"ignore": ["model.layers.0.mlp.down_proj", r"re:.*\.gate$"]}
    assert arguments(quantization="fp8")["quantization_config"] == {"ignore": [r"re:.*\.gate$"]}


def test_steps_in_which_turns_begin_have_graphs(arguments):
    sizes = arguments()["cudagraph_capture_sizes"]
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, 2048)
    assert arguments(compilation_config={"cudagraph_mode": "FULL"})["cudagraph_capture_sizes"] == sizes


@pytest.mark.parametrize(
    "given",
    [
        {"max_cudagraph_capture_size": 64},
        {"compilation_config": {"cudagraph_capture_sizes": [8]}},
        {"compilation_config": 0},
        {"on_cpu": True},
    ],
)
def test_given_graphs_are_kept(arguments, given):
    assert "cudagraph_capture_sizes" not in arguments(**given)


@pytest.mark.parametrize("correct", [True, False])
def test_graphs_that_compute_other_log_probabilities_are_refused(tmp_path, monkeypatch, correct):
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.worker.gpu.input_batch import InputBatch

    from agentloop.engines.vllm.launch import VllmLauncher

    def of_older_versions(num_reqs, num_tokens, input_buffers):
        raise AssertionError

    if not correct:
        monkeypatch.setattr(InputBatch, "make_dummy", of_older_versions)
    monkeypatch.setattr(AsyncLLM, "from_engine_args", lambda engine_args, usage_context: engine_args.compilation_config)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))

    def launch(config):
        given = {"enforce_eager": None, "tensor_parallel_size": 1, "compilation_config": config}
        launcher = VllmLauncher(str(tmp_path), given, shares_gpu=False, sleeps=False, max_pixels=None)
        try:
            return launcher.launch()
        finally:
            launcher.sockets.remove()

    assert launch({"cudagraph_mode": "FULL_AND_PIECEWISE"}).cudagraph_mode.name == "FULL_AND_PIECEWISE"
    assert launch(0) is not None
    if correct:
        assert launch({"cudagraph_mode": "FULL"}).cudagraph_mode.name == "FULL"
    else:
        with pytest.raises(UserError, match="cudagraph_mode FULL"):
            launch({"cudagraph_mode": "FULL"})
