"""The policy's adapter in vLLM: every turn uses it, and an update replaces it in place, also under running turns.

The base weights are loaded once. An update brings `MODULE.lora_a` [rank, in] and `MODULE.lora_b` [out, rank] for each
adapted layer, with the scale of the adapter in `lora_b`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agentloop.errors import EngineError, UserError

if TYPE_CHECKING:
    from torch import Tensor

_NUMBER = 1
_NAME = "policy"
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `max_lora_rank`; adapters of a smaller rank are padded."""
_PARTS = {"lora_a": "lora_A", "lora_b": "lora_B"}
"""Names of the two matrices here and in peft."""


def start_arguments(rank: int, compilation: Any = None) -> dict[str, Any]:
    """Return the arguments with which vLLM starts for an adapter of this rank. Raises `UserError` for a large rank.

    `compilation` is the user's `compilation_config`. Every turn uses the adapter, so vLLM need not capture CUDA graphs
    for turns without one.
    """
    if rank > _RANKS[-1]:
        raise UserError(
            f"learner.lora.rank is {rank}, and vLLM takes adapters of rank {_RANKS[-1]} at most. Lower it, or set "
            "learner.lora.publish=merged."
        )
    if compilation is None or isinstance(compilation, Mapping):
        compilation = {"cudagraph_specialize_lora": False, **(compilation or {})}
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": next(each for each in _RANKS if each >= rank),
        "compilation_config": compilation,
    }


def request() -> Any:
    """Return what makes a turn use the adapter."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(_NAME, _NUMBER, _NAME)  # the path is never read: the adapter is always loaded


def are_adapters(names: Iterable[str]) -> bool:
    """Return whether weights are those of adapters, by their names."""
    return all(name.rpartition(".")[2] in _PARTS for name in names)


def check_shapes(adapters: Mapping[str, tuple[int, ...]], weights: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `EngineError` unless each adapter has two matrices that fit a weight of the model."""
    for module in {name.rpartition(".")[0] for name in adapters}:
        a, b = (adapters.get(f"{module}.{part}", ()) for part in _PARTS)
        if (weight := weights.get(f"{module}.weight")) is None:
            raise EngineError(f"there is an adapter for {module}, which the engine's model does not have")
        if len(a) != 2 or len(b) != 2 or (b[0], a[1]) != weight or a[0] != b[1]:
            raise EngineError(f"the adapter of {module} has the shapes {a} and {b}, for a weight of shape {weight}")


def install(model_runner: Any, rank: int) -> None:
    """Give vLLM's worker an adapter without effect, which turns use until the first update."""
    manager = model_runner.lora_manager
    _put(manager._adapter_manager, manager._adapter_manager.create_dummy_lora(_NUMBER, rank, manager.embedding_modules))


def load(model_runner: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Replace the adapter of vLLM's worker. Raises `ValueError` for layers that have no adapters in vLLM."""
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    manager = model_runner.lora_manager
    tensors: dict[str, Tensor] = {}
    rank = 0
    for name, weight in weights:
        module, _, part = name.rpartition(".")
        tensors[f"{module}.{_PARTS[part]}.weight"] = weight.clone()  # the learner will overwrite its memory
        rank = weight.shape[0] if part == "lora_a" else rank
    mapper = getattr(manager._adapter_manager.model, "hf_to_vllm_mapper", None)
    targets = sorted({name.split(".")[-3] for name in tensors})
    adapter = LoRAModel.from_lora_tensors(
        _NUMBER,
        tensors,
        PEFTHelper(r=rank, lora_alpha=rank, target_modules=targets),
        device=str(manager.device),
        dtype=manager.lora_config.lora_dtype,
        model_vocab_size=manager.vocab_size,
        weights_mapper=None if mapper is None else mapper.get_rename_mapper(),
    )
    packed = manager._adapter_manager.packed_modules.values()
    known = {*manager._adapter_manager.modules, *(each for names in packed for each in names)}
    if unknown := sorted(set(adapter.loras) - known):
        raise ValueError(f"vLLM has no adapters for {', '.join(unknown[:5])}")
    _put(manager._adapter_manager, adapter)


def _put(manager: Any, adapter: Any) -> None:
    manager.remove_adapter(_NUMBER)
    manager.add_adapter(adapter)
    manager.activate_adapter(_NUMBER)
