"""`VllmLauncher`: checks the model, sets arguments and environment, and starts vLLM."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from agentloop.engines.vllm.compat import can_capture_mixed_steps, require_vllm
from agentloop.engines.vllm.images import start_arguments
from agentloop.engines.vllm.sockets import SocketFolder
from agentloop.errors import UserError
from agentloop.vision.processor import FAMILIES
from agentloop.weights.files import checkpoint_shapes

ENVIRONMENT = {
    # At WARNING, each start and weight update logs a screenful of normal events.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    # flashinfer's sampler compiles on first use; vLLM's own does not.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # After this process has queried CUDA, forks cannot use it, which vLLM does not detect.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"
"""Variable with the GiB of keys and values on CPUs. vLLM prefers it to the engine's argument."""
_CPU_CACHE_GIB = 2
_FP8 = "fp8_per_channel"
"""One scale for each row of a weight and for each token. The reload of vLLM rounds new weights again."""
_ROUTERS = r"re:.*\.gate$"
"""Layers that choose experts. They are not rounded to FP8."""

_GRAPH_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 512, 16), *range(512, 2049, 64))
"""Numbers of tokens in a step for which CUDA graphs are captured, as far as a step may have them.

vLLM alone stops at 512. With many episodes in flight a turn begins in almost every step, so steps have more tokens, and
without a graph Python starts each kernel of each layer."""
_GRAPH_OPTIONS = ("cudagraph_capture_sizes", "max_cudagraph_capture_size")

_MAMBA2 = {"bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2"}
"""Families with Mamba-2. On CPUs its kernel returns no states for the prefix cache, so that prompts longer than a block
fail (vLLM 0.32)."""


class VllmLauncher:
    """Starts vLLM for one engine. `arguments` are for `AsyncEngineArgs`, the others as in `VllmEngine`."""

    def __init__(
        self, model: str, arguments: Mapping[str, Any], *, shares_gpu: bool, sleeps: bool, max_pixels: int | None
    ) -> None:
        self._model = model
        self._given = arguments
        self._shares_gpu = shares_gpu
        self._sleeps = sleeps
        self._max_pixels = max_pixels
        self._other_cores: set[int | None] = set()
        """Process ids of the engine cores that ran before this one was started."""
        self.sockets = SocketFolder()
        """Folder of vLLM's sockets, which vLLM does not remove."""
        self.shapes: dict[str, tuple[int, ...]] | None = None
        """Shapes of the weights in the model folder; None for a name on the hub."""
        self.sees_images = False
        """Whether the model has a vision tower of a known family."""
        self.takes_grammars = False
        """Whether vLLM has the tokenizer that constrained turns need."""

    def launch(self) -> Any:
        """Start an `AsyncLLM`, which takes 20 s or more. Raises `UserError` if it cannot start."""
        folder = Path(self._model)
        if folder.is_dir():
            if not (folder / "config.json").is_file():
                raise UserError(
                    f"The model folder {self._model!r} has no config.json: write the model with `save_pretrained`."
                )
            self.shapes = checkpoint_shapes(folder)
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
        elif folder.is_absolute():
            raise UserError(f"There is no model folder {self._model!r}: correct the path.")
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        require_vllm()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        if self._sleeps and current_platform.is_cpu():
            raise UserError("vLLM cannot sleep on CPUs. Set placement.sleep=false.")
        if self._given.get("quantization") == "fp8" and current_platform.is_cpu():
            raise UserError(
                "engine.options.quantization is fp8, but vLLM multiplies in FP8 on GPUs only. Leave the option out."
            )
        if "kv_cache_memory_bytes" in self._given and current_platform.is_cpu() and os.environ.get(_CPU_CACHE):
            raise UserError(
                f"engine.options.kv_cache_memory_bytes is set, but vLLM on CPUs takes {_CPU_CACHE}="
                f"{os.environ[_CPU_CACHE]} from the environment. Unset the variable, or leave the option out."
            )
        try:
            args = AsyncEngineArgs(**self._arguments(AsyncEngineArgs.__dataclass_fields__))
            _require_correct_graphs(args)
            with self.sockets.used():  # by one start at a time
                self._other_cores = {process.pid for process in _engine_cores()}
                # The server's defaults suit the GPU. Otherwise a step has 2,048 tokens, and other turns wait.
                return AsyncLLM.from_engine_args(args, usage_context=UsageContext.OPENAI_API_SERVER)
        except UserError:
            raise
        except TypeError as error:
            raise UserError(f"vLLM does not take these engine arguments: {error}.") from error
        except Exception as error:  # the boundary to vLLM, which may raise anything
            raise UserError(
                f"vLLM cannot start with the model {self._model!r}: {type(error).__name__}: {error} "
                "See the log above; VLLM_LOGGING_LEVEL=INFO adds details."
            ) from error

    def abandon(self) -> None:
        """Kill the engine core that a `launch` in another thread has started, so that it fails. Call it until it has.

        Otherwise vLLM would start to the end, which takes a minute or more.
        """
        for process in _engine_cores():
            if process.pid not in self._other_cores:
                process.kill()

    def _arguments(self, known: Collection[str]) -> dict[str, Any]:
        """Return the arguments of `AsyncEngineArgs`, whose fields are `known`."""
        from vllm.platforms import current_platform

        family = _family(self._model)
        args: dict[str, Any] = {
            "model": self._model,
            "skip_tokenizer_init": not (Path(self._model) / "tokenizer.json").is_file(),
            # Not `auto`, which may pick another library for a schema.
            "structured_outputs_config": {"backend": "xgrammar"},
            "enable_prefix_caching": not (current_platform.is_cpu() and family in _MAMBA2),
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            "worker_extension_cls": "agentloop.engines.vllm.worker.WeightReceiver",
        }
        self.sees_images = family in FAMILIES
        if self.sees_images:
            args |= start_arguments(known, self._max_pixels, on_cpu=current_platform.is_cpu())
        args |= self._given
        if args.get("quantization") == "fp8":
            given = args.get("quantization_config") or {}
            args["quantization"] = _FP8
            args["quantization_config"] = {**given, "ignore": [*given.get("ignore", ()), _ROUTERS]}
        self.takes_grammars = not args["skip_tokenizer_init"]
        if self._sleeps:
            args["enable_sleep_mode"] = True
        if current_platform.is_cpu():
            # Otherwise vLLM takes most of the machine's memory. vLLM itself binds threads, one per physical core.
            args.setdefault("kv_cache_memory_bytes", int(os.environ.get(_CPU_CACHE) or _CPU_CACHE_GIB) << 30)
        else:
            if args["tensor_parallel_size"] == args.get("pipeline_parallel_size", 1) == 1:
                # A process for the model, beside that of the scheduler. In one process they wait for each other.
                args.setdefault("distributed_executor_backend", "mp")
            if "cudagraph_capture_sizes" in known and not _chooses_graphs(args):
                args["cudagraph_capture_sizes"] = list(_GRAPH_SIZES)
            if self._shares_gpu:
                args.setdefault("worker_cls", "agentloop.engines.vllm.gpu_sharing.SharingWorker")
        if args["enforce_eager"] is None:
            args["enforce_eager"] = current_platform.is_cpu()
        return args


def _engine_cores() -> list[Any]:
    return [process for process in multiprocessing.active_children() if process.name.startswith("EngineCore")]


def _require_correct_graphs(args: Any) -> None:
    """Raise `UserError` if `AsyncEngineArgs` ask for CUDA graphs that compute other log-probabilities."""
    from vllm.config import CUDAGraphMode

    mode = getattr(args.compilation_config, "cudagraph_mode", None)  # the config may be a level
    if mode == CUDAGraphMode.FULL and not can_capture_mixed_steps():
        raise UserError(
            "engine.options.compilation_config has cudagraph_mode FULL, with which this version of vLLM computes "
            "prompts wrongly. Leave it out (vLLM's default is FULL_AND_PIECEWISE)."
        )


def _chooses_graphs(args: Mapping[str, Any]) -> bool:
    """Return whether given arguments say which CUDA graphs to capture."""
    compilation = args.get("compilation_config")
    if not isinstance(compilation, Mapping | None):
        return True
    return any(name in {**args, **(compilation or {})} for name in _GRAPH_OPTIONS)


def _family(model: str) -> str:
    """Return the `model_type` of a folder or of a name on the hub."""
    from transformers import PreTrainedConfig

    settings, _ = PreTrainedConfig.get_config_dict(model)
    return str(settings.get("model_type"))
