"""Downloads from the Hugging Face hub and its errors. The tests replace its client, so they need no network."""

import json

import httpx
import numpy as np
import pytest
from huggingface_hub import errors
from safetensors.numpy import save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import Qwen3Config

from agentloop.config.loading import load_config, validated
from agentloop.config.resolved import Facts, context_length, resolve
from agentloop.config.rollout import LimitsConfig
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.run.model_folder import check_second_models, find_model, local_model

CONFIG = validated(RunConfig, {"model": "org/m", "data": {"train": "t"}, "env": {"reward": "exact"}}, "test")


def test_dry_run_downloads_no_weights(tmp_path, monkeypatch):
    asked = []
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda name, ignore_patterns: asked.append(ignore_patterns) or str(tmp_path),
    )
    assert local_model(CONFIG) == local_model(CONFIG, weights=False) == tmp_path
    assert asked[0] is None
    assert "*.safetensors" in asked[1]


def refusal(kind: type[Exception]) -> Exception:
    return kind("no", response=httpx.Response(403, request=httpx.Request("GET", "https://hub")))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.LocalEntryNotFoundError("no"), "hf download org/m --local-dir"),
        (refusal(errors.GatedRepoError), "Request access on its page"),
        (refusal(errors.RepositoryNotFoundError), "spelling"),
        (RuntimeError("what\nelse"), r"RuntimeError: what else"),
    ],
)
def test_errors_of_the_hub_name_a_fix(monkeypatch, error, words):
    def answer(name, ignore_patterns):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", answer)
    with pytest.raises(UserError, match=words):
        local_model(CONFIG)


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        (None, 4096),
        ({"rope_type": "default", "rope_theta": 1e6}, 4096),
        ({"type": "linear", "factor": 4.0}, 16384),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}, 4096),
        ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}, 4096),
    ],
)
def test_context_counts_scaled_positions_once(tmp_path, scaling, context):
    text = {"max_position_embeddings": 4096, "rope_scaling": scaling}
    for content in (text, {"text_config": text}):
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert context_length(tmp_path) == context


def test_the_longest_episode_is_the_setting_or_the_bound_of_context_and_budget(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 1000}')
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    assert CONFIG.max_tokens(context_length(local_model(CONFIG))) == 1000
    assert CONFIG.max_tokens() == CONFIG.max_tokens(10**6) == CONFIG.learner.token_budget
    assert resolve(CONFIG, Facts(model=tmp_path)).engine.options["max_model_len"] == 1000
    chosen = CONFIG.replace(limits=LimitsConfig(max_tokens=2000))
    assert chosen.max_tokens(1000) == 2000
    with pytest.raises(UserError, match=r"limits\.max_tokens is 2000, but org/m supports 1000 tokens"):
        local_model(chosen)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b'{"a": ', r"config\.json is not JSON"),
        ("config.json", b"[]", r"config\.json is not a JSON object"),
        (
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
            "run `git lfs pull`",
        ),
        ("model.safetensors", save({"a": np.zeros(9)})[:-1], r"model\.safetensors is incomplete or damaged"),
    ],
)
def test_damaged_files_of_a_model_are_named(tmp_path, name, content, words):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=words):
        local_model(CONFIG.replace(model=str(tmp_path)))


def _with_tokenizer(folder, *words):
    folder.mkdir()
    Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, words[0])).save(
        str(folder / "tokenizer.json")
    )
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("key", ["learner.reference", "critic.model", "process_reward.model"])
def test_a_second_model_with_another_tokenizer_is_refused(sums, tmp_path, key):
    model = _with_tokenizer(tmp_path / "model", "yes", "no", "maybe")
    check_second_models(load_config(RunConfig, sums / "config.yaml", [f"{key}={model}"]), model)
    longer = _with_tokenizer(tmp_path / "longer", "yes", "no", "maybe", "added")
    check_second_models(load_config(RunConfig, sums / "config.yaml", [f"{key}={longer}"]), model)
    other = _with_tokenizer(tmp_path / "other", "yes", "maybe", "no")
    with pytest.raises(UserError, match=f"^{key} is .*other, whose .* for 2 tokens, such as 'maybe', so it would"):
        check_second_models(load_config(RunConfig, sums / "config.yaml", [f"{key}={other}"]), model)


def test_base_model_stands_for_a_model_that_is_not_made_yet(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "base").mkdir()
    Qwen3Config(max_position_embeddings=40960).save_pretrained(tmp_path / "base")
    planned = CONFIG.replace(model=str(tmp_path / "sft"), base_model=str(tmp_path / "base"))
    found = find_model(planned)
    assert (found.folder, found.hf_config.model_type) == (tmp_path / "base", "qwen3")
    assert "its base_model" in found.note
    known = find_model(planned.replace(base_model="Qwen/Qwen3-0.6B"))
    assert (known.folder, known.hf_config.hidden_size) == (None, 1024)
    assert f"{tmp_path}/sft is not available here, nor is its base_model Qwen/Qwen3-0.6B" in known.note
    assert "its built-in shape is used" in known.note
    with pytest.raises(UserError, match="There is no model folder"):
        find_model(planned.replace(base_model=None))
