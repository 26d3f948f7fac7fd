"""Starting vLLM: what it is told by arguments and by the environment, and what is refused before it starts."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from agentloop.engines.vllm.compat import require_vllm
from agentloop.engines.vllm.images import start_arguments
from agentloop.engines.vllm.sockets import SocketFolder
from agentloop.errors import UserError
from agentloop.vision.processor import FAMILIES
from agentloop.weights.files import checkpoint_shapes

ENVIRONMENT = {
    # At WARNING a start and every weight update print a screenful of what is as it should be.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    # flashinfer's sampler compiles at first use; vLLM's own does not.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # A fork cannot use CUDA once this process has as much as asked whether there is any, which vLLM does not notice.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_CPU_CACHE_GIB = "2"


class VllmLauncher:
    """Of one engine. `arguments` are of vLLM's `AsyncEngineArgs`, the rest as of `VllmEngine`."""

    def __init__(
        self, model: str, arguments: Mapping[str, Any], *, shares_gpu: bool, sleeps: bool, max_pixels: int | None
    ) -> None:
        self._model = model
        self._given = arguments
        self._shares_gpu = shares_gpu
        self._sleeps = sleeps
        self._max_pixels = max_pixels
        self.sockets = SocketFolder()
        """Of vLLM, which does not remove them."""
        self.shapes: dict[str, tuple[int, ...]] | None = None
        """Of the weights in the model's folder, where it is one."""
        self.sees_pictures = False
        """The model has a vision tower that is known."""

    def launch(self) -> Any:
        """An `AsyncLLM`, after 20 s and more. Raises `UserError` where that is not possible."""
        folder = Path(self._model)
        if folder.is_dir():
            if not (folder / "config.json").is_file():
                raise UserError(f"The model folder {self._model!r} has no config.json; `save_pretrained` writes one.")
            self.shapes = checkpoint_shapes(folder)
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
        elif folder.is_absolute():
            raise UserError(f"There is no model folder {self._model!r}.")
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        require_vllm()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        if self._sleeps and current_platform.is_cpu():
            raise UserError(
                "vLLM cannot sleep on CPUs, and is to leave its memory to the learner while that trains. Set "
                "placement.sleep=false."
            )
        try:
            args = AsyncEngineArgs(**self._arguments(AsyncEngineArgs.__dataclass_fields__))
            with self.sockets.used():
                return AsyncLLM.from_engine_args(args)
        except TypeError as error:
            raise UserError(f"vLLM does not take these engine arguments: {error}.") from error
        except Exception as error:  # the boundary to vLLM, which raises whatever its parts raise
            raise UserError(
                f"vLLM cannot start with the model {self._model!r}: {type(error).__name__}: {error} "
                "The log above has more; VLLM_LOGGING_LEVEL=INFO makes it longer."
            ) from error

    def _arguments(self, known: Collection[str]) -> dict[str, Any]:
        """Of the `known` ones, with what was given."""
        from vllm.platforms import current_platform

        args: dict[str, Any] = {
            "model": self._model,
            "skip_tokenizer_init": True,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            "worker_extension_cls": "agentloop.engines.vllm.worker.WeightReceiver",
        }
        self.sees_pictures = _family(self._model) in FAMILIES
        if self.sees_pictures:
            args |= start_arguments(known, self._max_pixels, on_cpu=current_platform.is_cpu())
        args |= self._given
        if self._sleeps:
            args["enable_sleep_mode"] = True
        if current_platform.is_cpu():
            # Otherwise vLLM takes most of the machine's memory. Threads stay as vLLM binds them (one a physical core).
            gib = int(os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", _CPU_CACHE_GIB))
            args.setdefault("kv_cache_memory_bytes", gib << 30)
            # A prompt that is computed in parts ends vLLM on CPUs where the turn has a seed: it turns the generator
            # back by what the unfinished parts drew, which only CUDA generators can do.
            args.setdefault("enable_chunked_prefill", False)
        elif self._shares_gpu:
            args.setdefault("worker_cls", "agentloop.engines.vllm.gpu_sharing.SharingWorker")
        if args["enforce_eager"] is None:
            args["enforce_eager"] = current_platform.is_cpu()
        return args


def _family(model: str) -> str:
    """The `model_type` of a folder or a name on the hub."""
    from transformers import PreTrainedConfig

    settings, _ = PreTrainedConfig.get_config_dict(model)
    return str(settings.get("model_type"))
