"""Adapters in the format of the library peft."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from agentloop.config.learner import LoraConfig
from agentloop.trainer.model.experts.adapters import SUFFIX

_MLP = {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}
_NAMES = {"lora_a": "lora_A", "lora_b": "lora_B"}


def save_adapters(folder: Path, weights: dict[str, Tensor], config: LoraConfig, base: Path) -> None:
    """Write unsharded adapters, given by their names in the learner, to a folder that the library peft reads."""
    from safetensors.torch import save_file

    folder.mkdir()
    named: dict[str, Tensor] = {}
    linear: set[str] = set()
    experts: dict[str, list[str]] = {}
    for name, weight in weights.items():
        owner, _, kind = name.rpartition(".")
        if owner.endswith(SUFFIX):
            parent, _, parameter = owner.removesuffix(SUFFIX).rpartition(".")
            if parameter not in (seen := experts.setdefault(parent, [])):
                seen.append(parameter)
        else:
            linear.add(owner)
            # A copy, because safetensors refuses tensors that share memory.
            named[f"base_model.model.{owner}.{_NAMES[kind]}.weight"] = weight.contiguous().clone()
    for parent, parameters in experts.items():
        for depth, parameter in enumerate(reversed(parameters)):
            # peft nests the adapters of one module: that of the last parameter is outermost.
            owner = f"base_model.model.{parent}{'.base_layer' * depth}"
            a, b = (weights[f"{parent}.{parameter}{SUFFIX}.{kind}"] for kind in _NAMES)
            named[f"{owner}.lora_A.weight"] = a.flatten(0, 1).contiguous()
            named[f"{owner}.lora_B.weight"] = b.permute(1, 2, 0).flatten(1).contiguous()
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    if experts:
        # In a mixture of experts, peft mistakes the names of linear layers in an MLP for those of experts.
        is_mlp = {name: name.rpartition(".")[2] in _MLP for name in linear}
        parameters = [f"{parent}.{name}" for parent, names in experts.items() for name in names]
        settings["target_parameters"] = sorted(parameters + [f"{name}.weight" for name in linear if is_mlp[name]])
        linear = {name for name in linear if not is_mlp[name]}
    settings["target_modules"] = sorted({name.rpartition(".")[2] for name in linear})
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1) + "\n")
