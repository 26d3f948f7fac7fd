"""Downloads from the Hugging Face hub and its errors. The tests replace its client, so they need no network."""

import httpx
import pytest
from huggingface_hub import errors

from agentloop.config.loading import validated
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.run.model_folder import local_model

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
