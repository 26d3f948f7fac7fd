"""Compare vLLM's log-probabilities with those of plain transformers, for small models of many families in one process.

    python -m tests.support.vllm_families qwen3_moe qwen3_5_text ...

writes one line of JSON for each family. vLLM runs inside this process, which saves the 20 s of import that each engine
of its own would take. Arguments, weight updates and sampling parameters are those of `VllmEngine`.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from agentloop.engines.base import Generation, SamplingParams
from tests.support.family_outcomes import differences
from tests.support.small_models import save_small_model

_WIDTH = 4
"""vLLM for CPU needs heads of 32 features or more."""
_WIDER = dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"), 16)
"""Its gated delta nets need heads of 128."""
_LATENT = {"kv_lora_rank": 512 // _WIDTH, "qk_rope_head_dim": 64 // _WIDTH}
_SIZES = dict.fromkeys(
    ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_linear", "longcat_flash", "youtu"), _LATENT
)
"""vLLM for CPU has latent attention only in the size of DeepSeek."""
_KEYS: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "glm4_moe": {"head_dim": 32, "first_k_dense_replace": 1},
    "glm4_moe_lite": {"first_k_dense_replace": 1},
    "lfm2": {"conv_dim": 128, "conv_dim_out": 128, "block_dim": 128, "block_ff_dim": 192},
    "llama4": {"text_config": {"attention_chunk_size": 32, "num_experts_per_tok": 1}},
    "llama4_text": {"attention_chunk_size": 32, "num_experts_per_tok": 1},
    "minicpm3": {"dim_model_base": 128},
    "minimax_m2": {"rotary_dim": 32, "scoring_func": "sigmoid", "use_routing_bias": True, "attn_type_list": [1] * 4},
}
"""Keys that published configurations have and vLLM reads, but transformers does not write; values that vLLM takes."""
_LONGEST = 128
_UPDATE = 0.02
"""Standard deviation of what an update adds to each weight."""


class InProcess:
    """A vLLM engine in this process. Raises `UserError` if vLLM refuses the model."""

    def __init__(self, folder: Path, dtype: str) -> None:
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.llm_engine import LLMEngine

        from agentloop.engines.vllm.launch import VllmLauncher
        from agentloop.weights.checkpoint_names import CheckpointNames
        from agentloop.weights.shelf import WeightShelf

        given = {"dtype": dtype, "max_model_len": _LONGEST, "max_num_seqs": 8, "seed": 0, "enforce_eager": None}
        given["block_size"] = 32  # the default on CPUs, 128, is longer than the prompts here
        given["num_gpu_blocks_override"] = 256  # the default on CPUs fills gigabytes
        self._names = CheckpointNames(folder)
        self._launcher = VllmLauncher(str(folder), given, shares_gpu=False, sleeps=False, max_pixels=None)
        start = partial(LLMEngine.from_engine_args, enable_multiprocessing=False)
        with mock.patch.object(AsyncLLM, "from_engine_args", start):
            self._llm = self._launcher.launch()
        self._llm.collective_rpc("agentloop_prepare", args=(None,))
        self._shelf = WeightShelf()
        self._updates = 0
        self.cached_tokens = 0
        """Tokens of the last prompts that were in the prefix cache."""

    def generate(self, prompts: Sequence[list[int]], params: SamplingParams) -> list[Generation]:
        """Play one turn for each prompt, all at once."""
        from vllm.inputs import tokens_input

        from agentloop.engines.vllm.requests import generation_of, vllm_params

        for number, prompt in enumerate(prompts):
            inputs = tokens_input(prompt, cache_salt=str(self._updates))
            self._llm.add_request(str(number), inputs, vllm_params(params, _LONGEST - len(prompt)))
        found, self.cached_tokens = {}, 0
        while self._llm.has_unfinished_requests():
            for output in self._llm.step():
                found[output.request_id] = generation_of(output, [(0, 0)])
                self.cached_tokens += output.num_cached_tokens or 0
        return [found[str(number)] for number in range(len(prompts))]

    def update(self, model: nn.Module) -> None:
        """Load the weights of `model` under their names in transformers."""
        from agentloop.weights.files import check_names
        from agentloop.weights.tensors import TensorWeights
        from agentloop.weights.wire import to_json

        shared = TensorWeights(list(model.named_parameters())).shared(self._shelf)
        check_names(self._names.shapes(shared.shapes), self._launcher.shapes or {})
        (problem,) = self._llm.collective_rpc("agentloop_open", args=(to_json(shared),))
        assert not problem, problem
        self._llm.collective_rpc("agentloop_load")
        self._updates += 1

    def close(self) -> None:
        """Free the engine."""
        self._llm.engine_core.shutdown()


def compared(family: str) -> dict[str, Any]:
    """Return the differences of log-probabilities, before and after an update, or why vLLM has none.

    They are the largest of a token in float32. If vLLM cannot run the family in float32, they are medians in bfloat16:
    rounding makes routers choose other experts for some tokens, in plain transformers as well.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = save_small_model(family, Path(name), width=_WIDER.get(family, _WIDTH), **_SIZES.get(family, {}))
        file = folder / "config.json"
        settings = json.loads(file.read_text())
        for key, value in _KEYS.get(family, {}).items():
            settings[key] = settings.get(key, {}) | value if isinstance(value, dict) else value
        file.write_text(json.dumps(settings))
        # vLLM runs some families with the classes of transformers, and lets these compile themselves.
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        model.base_model.do_not_compile = True
        found = _outcome(folder, copy.deepcopy(model), "float32")
        if "error" in found:
            again = _outcome(folder, model, "bfloat16")
            found = found if "error" in again else again
        return found


@contextmanager
def _one_collection() -> Iterator[None]:
    """Collect garbage once at the end, without the objects from before.

    vLLM collects eight times for each engine, and visits all objects of its imports for up to a second each time.
    """
    gc.freeze()
    with mock.patch.object(gc, "collect"), mock.patch.object(gc, "freeze"), mock.patch.object(gc, "unfreeze"):
        yield
    gc.collect()


@_one_collection()
def _outcome(folder: Path, model: nn.Module, dtype: str) -> dict[str, Any]:
    from vllm.distributed import cleanup_dist_env_and_memory

    engine = None
    try:
        engine = InProcess(folder, dtype)
        return {"dtype": dtype, **_compared(engine, model, np.max if dtype == "float32" else np.median)}
    except Exception as error:  # the boundary to vLLM, which may raise anything
        return {"error": f"{type(error).__name__}: {error}".replace(str(folder), "FOLDER")}
    finally:
        if engine is not None:
            engine.close()
        cleanup_dist_env_and_memory()  # another engine can start in this process


def _compared(engine: InProcess, model: nn.Module, of_tokens: Callable[[Any], Any]) -> dict[str, Any]:
    def gap(prompts: Sequence[list[int]], turns: Sequence[Generation]) -> float:
        found = [differences(model, prompt, turn) for prompt, turn in zip(prompts, turns, strict=True)]
        return float(of_tokens(np.concatenate(found)))

    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 120, length).tolist() for length in (5, 23, 80)]
    greedy, sampled = SamplingParams(max_tokens=8, temperature=0.0), SamplingParams(max_tokens=8, seed=3)
    found: dict[str, Any] = {"greedy": gap(prompts, engine.generate(prompts, greedy))}
    turns = engine.generate(prompts, sampled)
    found["sampled"] = gap(prompts, turns)
    # The longest is longer than any block of a prefix cache, and than the first turn.
    later = [[*prompt, *turn.ids, *range(7, 23)] for prompt, turn in zip(prompts, turns, strict=True)]
    found["second_turn"] = gap(later, engine.generate(later, sampled))
    found["cached_tokens"] = engine.cached_tokens
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(_UPDATE * torch.randn(parameter.shape, generator=generator))
    found["old_weights"] = gap(prompts, turns)
    engine.update(model)
    found["updated"] = gap(later, engine.generate(later, sampled))
    return found


def main() -> None:
    """Write one line for each family of the arguments."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm.platforms.cpu import CpuPlatform

    # It visits all names of all modules to replace Triton's kernels, each time for more than a second.
    once = cache(CpuPlatform.register_triton_kernel_overrides)
    with mock.patch.object(CpuPlatform, "register_triton_kernel_overrides", staticmethod(once)):
        for family in sys.argv[1:]:
            print(json.dumps({"family": family, **compared(family)}), flush=True)


if __name__ == "__main__":
    main()
