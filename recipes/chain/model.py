"""Build the randomly initialised model of ninety million parameters.

    python -m agentloop.recipes.chain.model

writes the model from which sft.yaml starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentloop.recipes.tiny.model import build_model, write_model

START = Path(__file__).parent / "data" / "start"

SIZE: Mapping[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 2560,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "initializer_range": 0.02,
}

if __name__ == "__main__":
    write_model(partial(build_model, size=SIZE), START)
