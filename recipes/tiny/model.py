"""Build a randomly initialised Qwen3 model, by default of a million parameters, and save it as a model folder.

    python -m agentloop.recipes.tiny.model

writes the model from which sft.yaml starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.process.quiet import quiet_libraries
from agentloop.recipes.tiny.tokenizer import MAX_TOKENS, build_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3Config

START = Path(__file__).parent / "data" / "start"

TINY = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.05,
}
"""Sizes of a million parameters. Two or four ranks can shard the heads and the vocabulary."""


def model_config(tokenizer: PreTrainedTokenizerFast, size: Mapping[str, Any] = TINY) -> Qwen3Config:
    """Return a config with every part of the large Qwen3 models. `size` has further fields of the config."""
    from transformers import Qwen3Config

    return Qwen3Config(
        **size,
        vocab_size=-(-len(tokenizer) // 64) * 64,
        max_position_embeddings=MAX_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )


def build_model(folder: str | Path, seed: int = 0, size: Mapping[str, Any] = TINY) -> Path:
    """Write a randomly initialised float32 model and its tokenizer to `folder` and return it.

    The folder is what `from_pretrained`, vLLM and every `model=` key take.
    """
    import torch
    from transformers import Qwen3ForCausalLM

    folder = Path(folder)
    tokenizer = build_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(model_config(tokenizer, size))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_model(build: Callable[[Path], Path], folder: Path) -> None:
    """Build a model as a script, in the folder that the command line names or else in `folder`, and print where."""
    quiet_libraries()
    print(f"wrote the model to {build(Path(sys.argv[1]) if len(sys.argv) > 1 else folder)}")


if __name__ == "__main__":
    write_model(build_model, START)
