"""Find the folder of a config's model, and check that a run can use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentloop.config.run import RunConfig
from agentloop.errors import UserError

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx")


def local_model(config: RunConfig, *, weights: bool = True) -> Path:
    """Return the folder of `config.model`; download the model if it is a name on the Hugging Face hub.

    Without `weights` only config and tokenizer are downloaded, which is enough for a dry run. Raises `UserError` if
    the model does not exist, or if its context is shorter than `limits.max_tokens`.
    """
    folder = Path(config.model).expanduser()
    if not folder.is_dir():
        if folder.is_absolute():
            raise UserError(f"There is no model folder {folder}. Set model to a folder, or to a hub name ('org/name').")
        folder = _from_hub(config.model, weights=weights)
    settings = folder / "config.json"
    if not settings.is_file():
        raise UserError(f"{folder} is not a model folder: it has no config.json. Set model to a folder that has one.")
    positions = _num_positions(json.loads(settings.read_text(encoding="utf-8")))
    if positions is not None and config.limits.max_tokens > positions:
        raise UserError(
            f"limits.max_tokens is {config.limits.max_tokens}, but {config.model} supports {positions} tokens. Set "
            f"limits.max_tokens={positions} or less."
        )
    return folder


def _from_hub(name: str, *, weights: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    missing = f"No model {name!r} was found: it is not a folder here, and not a model on the Hugging Face hub"
    try:
        return Path(snapshot_download(name, ignore_patterns=None if weights else list(_WEIGHTS)))
    except HFValidationError as error:
        raise UserError(f"{missing}. Set model to a folder ('./name') or a hub name ('org/name').") from error
    except GatedRepoError as error:
        raise UserError(
            f"The model {name!r} is gated. Request access on its page of the Hugging Face hub, then log in with "
            "`hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{missing}. Check the spelling; if the model is private, log in with `hf auth login`."
        ) from error
    except LocalEntryNotFoundError as error:
        raise UserError(
            f"There is no folder {name!r} here, and the Hugging Face hub cannot be reached from this machine. "
            f"Download the model on a machine with a network (`hf download {name} --local-dir FOLDER`), and set model "
            "to that folder."
        ) from error
    # Without a network the client passes on any error of its transport.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{missing} ({type(error).__name__}: {reason}). Set model to a folder or a hub name."
        ) from error


def _num_positions(settings: dict[str, Any]) -> int | None:
    """Return the context length of the language model, whose settings vision models keep in `text_config`."""
    text = settings.get("text_config", settings)
    positions = text.get("max_position_embeddings")
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    factor = scaling.get("factor", 1.0) if isinstance(scaling, dict) else 1.0
    return int(positions * max(factor, 1.0)) if isinstance(positions, int) else None
