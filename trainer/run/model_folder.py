"""From the name in a config to the folder of a model that can be run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentloop.config.run import RunConfig
from agentloop.errors import UserError

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx")


def local_model(config: RunConfig, *, weights: bool = True) -> Path:
    """The folder of `config.model`, fetched from the Hugging Face hub where it is a name; without `weights` its config
    and tokenizer only, which is what a dry run needs.

    Raises `UserError` where there is no such model, or where it is too short for `limits.max_tokens`.
    """
    folder = Path(config.model).expanduser()
    if not folder.is_dir():
        if folder.is_absolute():
            raise UserError(f"There is no model folder {folder}. Set model to one, or to a hub name ('org/name').")
        folder = _from_hub(config.model, weights=weights)
    settings = folder / "config.json"
    if not settings.is_file():
        raise UserError(f"{folder} is no model folder: it has no config.json. Set model to a folder that has one.")
    positions = _num_positions(json.loads(settings.read_text(encoding="utf-8")))
    if positions is not None and config.limits.max_tokens > positions:
        raise UserError(
            f"limits.max_tokens is {config.limits.max_tokens}, but {config.model} is made for {positions} tokens. Set "
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

    missing = (
        f"There is no model {name!r}: neither a folder here nor, as far as can be seen, a model on the Hugging Face hub"
    )
    try:
        return Path(snapshot_download(name, ignore_patterns=None if weights else list(_WEIGHTS)))
    except HFValidationError as error:
        raise UserError(f"{missing}. Set model to a folder ('./name') or a hub name ('org/name').") from error
    except GatedRepoError as error:
        raise UserError(
            f"The model {name!r} is open to those only who asked for it: ask on its page of the hub, then "
            "`hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(f"{missing}. Look at the spelling; for one of your own, `hf auth login`.") from error
    except LocalEntryNotFoundError as error:
        raise UserError(
            f"There is no folder {name!r} here, and the Hugging Face hub cannot be reached from this machine. Fetch "
            f"the model where there is a network (`hf download {name} --local-dir FOLDER`), and set model to it."
        ) from error
    # Without a network the client raises whatever its transport does.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{missing} ({type(error).__name__}: {reason}). Set model to one of them.") from error


def _num_positions(settings: dict[str, Any]) -> int | None:
    """Of the language model; models with vision keep its settings in a part of their own."""
    text = settings.get("text_config", settings)
    positions = text.get("max_position_embeddings")
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    factor = scaling.get("factor", 1.0) if isinstance(scaling, dict) else 1.0
    return int(positions * max(factor, 1.0)) if isinstance(positions, int) else None
