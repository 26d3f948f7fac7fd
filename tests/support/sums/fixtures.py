"""Fixtures shared by several conftest.py files: a recipe folder with everything that a run needs."""

import shutil
from pathlib import Path

import pytest

SUMS = Path(__file__).parent


@pytest.fixture(scope="session")
def sums_model(tmp_path_factory) -> Path:
    """Return a folder with a randomly initialised model and its tokenizer."""
    import torch
    from transformers import Qwen3ForCausalLM

    from agentloop.recipes.tiny.model import model_config
    from agentloop.recipes.tiny.tokenizer import build_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    config = model_config(tokenizer)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 32, 64, 2
    config.layer_types = config.layer_types[:2]
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def sums(tmp_path, sums_model) -> Path:
    """Return a fresh recipe folder for one test."""
    folder = tmp_path / "sums"
    shutil.copytree(SUMS, folder, ignore=shutil.ignore_patterns("__pycache__", "fixtures.py"))
    (folder / "model").symlink_to(sums_model)
    return folder
