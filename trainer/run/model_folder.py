"""Find the model of a config, and check that a run can use it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentloop.config.resolved import context_length
from agentloop.config.run import RunConfig
from agentloop.errors import UserError, see_readme
from agentloop.trainer.sizing.shapes import shape_of
from agentloop.vision.processor import FAMILIES
from agentloop.weights.files import WEIGHT_FILES

_POINTER = b"version https://git-lfs"


class MissingModel(UserError):
    """The model is neither on this machine nor on the hub, or the hub is unreachable."""


@dataclass(slots=True, frozen=True)
class FoundModel:
    """The parts of a run's model that this machine has, without weights."""

    hf_config: Any
    folder: Path | None
    """Folder with config and tokenizer; None if only the shape is known."""
    note: str = ""
    """Explanation if something else stands for the model; empty otherwise."""


def local_model(config: RunConfig, *, weights: bool = True) -> Path:
    """Return the folder of `config.model`; download the model if it is a name on the Hugging Face hub.

    Without `weights` only config and tokenizer are downloaded. Raises `UserError` if the model does not exist, or if
    its context is shorter than `limits.max_tokens`.
    """
    folder = locate_model(config.model, weights=weights)
    _check_context(config, context_length(folder))
    return folder


def teacher_folder(config: RunConfig, model: Path, *, weights: bool = True) -> Path | None:
    """Return the folder of the teacher of `algorithm.distillation`; None if there is none, or if it is a service.

    `weights` is as for `locate_model`. Raises `UserError` if it does not exist, or if its vocabulary differs from the
    model in the folder `model`.
    """
    distillation = config.algorithm.distillation
    if distillation is None or distillation.is_served:
        return None
    folder = locate_model(distillation.teacher, weights=weights, key="algorithm.distillation.teacher")
    if (folder / "tokenizer.json").is_file() and _vocabulary(folder) != _vocabulary(model):
        raise UserError(
            f"The teacher {distillation.teacher} has a different vocabulary than {config.model}, so it cannot score "
            "its tokens. Set algorithm.distillation.teacher to a model of the same family."
        )
    return folder


def check_second_models(config: RunConfig, model: Path) -> None:
    """Check the models that the learner loads besides that in the folder `model`.

    Raises `UserError` if one does not exist, or cannot read the tokens of that model.
    """
    second = {
        "learner.reference": config.learner.reference,
        "critic.model": config.critic.model,
        "process_reward.model": config.process_reward.model,
    }
    for key, name in second.items():
        if name is not None and name != config.model:
            folder = Path(name).expanduser()
            if not (folder / "config.json").is_file():
                raise UserError(
                    f"{folder} is not a model folder: it has no config.json. Set {key} to a folder in Hugging Face "
                    "format (config.json, *.safetensors, tokenizer files)."
                )
            check_same_tokens(folder, model, key)


def check_same_tokens(folder: Path, model: Path, key: str) -> None:
    """Raise `UserError` if the model in `folder`, the value of `key`, has other ids for tokens of that in `model`.

    A token that only one of them has, such as one that was added in fine-tuning, is not an error.
    """
    if folder == model or not (folder / "tokenizer.json").is_file() or not (model / "tokenizer.json").is_file():
        return
    theirs, ours = _vocabulary(folder), _vocabulary(model)
    if other := [token for token in ours.keys() & theirs.keys() if ours[token] != theirs[token]]:
        raise UserError(
            f"{key} is {folder}, whose tokenizer has other ids than that of {model} for {len(other)} tokens, such as "
            f"{min(other)!r}, so it would score the wrong tokens. Set {key} to a model with the same tokenizer."
        )


def _vocabulary(folder: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    found: dict[str, int] = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return found


def find_model(config: RunConfig) -> FoundModel:
    """Return the parts of the model that are available without weights.

    This is its folder or its files on the hub, or else those of `base_model`, or else the built-in shape of either.
    Raises `UserError` if none is available, or if its context is shorter than `limits.max_tokens`.
    """
    names = [config.model, *([config.base_model] if config.base_model else [])]
    missing: list[MissingModel] = []
    for name in names:
        try:
            folder = locate_model(name, weights=False)
        except MissingModel as error:
            missing.append(error)
            continue
        _check_context(config, context_length(folder))
        note = "" if name == config.model else f"{config.model} does not exist yet, so its base_model {name} is used"
        return FoundModel(_read_config(folder), folder, note)
    for name in names:
        if (shape := shape_of(name)) is not None:
            _check_context(config, shape.get_text_config().max_position_embeddings)
            note = f"the files of {name} are not available here, so its built-in shape is used"
            if name != config.model:
                note = f"{config.model} is not available here, nor is its base_model {name}: its built-in shape is used"
            return FoundModel(shape, None, note)
    raise missing[0]


def locate_model(name: str, *, weights: bool = True, key: str = "model") -> Path:
    """Return the folder of a model, which may be that of a run that has ended, or a name on the Hugging Face hub.

    Errors name the `key` of the config. Raises `MissingModel`, or `UserError` for a folder without a model.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if folder.is_absolute():
            raise MissingModel(
                f"There is no model folder {folder}. Set {key} to an existing folder, or to a name on the hub "
                f"('org/name').{see_readme(folder)}"
            )
        folder = _from_hub(name, weights=weights, key=key)
    if (folder / "checkpoints").is_dir():
        folder = folder / "model"
        if not folder.is_dir():
            raise UserError(
                f"The run in {folder.parent} has not ended, so it has no trained model yet. Wait for it, or export the "
                f"model of a checkpoint: agentloop export {folder.parent} FOLDER."
            )
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is not a model folder: it has no config.json. Set {key} to a folder that has one.")
    _check_object(folder / "config.json")
    if weights:
        check_weights(folder)
    return folder


def check_weights(folder: Path) -> None:
    """Raise `UserError` for incomplete weights, as of an interrupted download or of `git clone` without git-lfs."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy"):  # reads only the header, and compares the size
                pass
        except SafetensorError as error:
            with file.open("rb") as opened:
                is_pointer = opened.read(len(_POINTER)) == _POINTER
            if is_pointer:
                raise UserError(
                    f"{file} is a pointer of git-lfs without the weights. Install git-lfs, and run `git lfs pull` in "
                    "the folder."
                ) from error
            raise UserError(f"{file} is incomplete or damaged ({error}). Download the model again.") from error


def _check_object(file: Path) -> None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is not JSON ({error}). Download the model again.") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} is not a JSON object. Download the model again.")


def _check_context(config: RunConfig, context: int | None) -> None:
    if context is not None and config.max_tokens(context) > context:
        raise UserError(
            f"limits.max_tokens is {config.limits.max_tokens}, but {config.model} supports {context} tokens. Set "
            f"limits.max_tokens={context} or less, or omit it."
        )


def _read_config(folder: Path) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        found = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{folder / 'config.json'} cannot be read ({reason}). Set model to the folder of a model that transformers "
            "knows, or update transformers."
        ) from error
    _check_decoder(found, folder)
    return found


def _check_decoder(hf_config: Any, folder: Path) -> None:
    """Raise `UserError` for models that cannot sample one token after another: encoders, for example."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = hf_config.model_type
    is_masked = any(name.endswith("ForMaskedLM") for name in hf_config.architectures or ())
    is_causal = type(hf_config) in MODEL_FOR_CAUSAL_LM_MAPPING or kind in FAMILIES
    if not is_causal or is_masked or getattr(hf_config, "is_encoder_decoder", False):
        raise UserError(f"The model in {folder}, a {kind}, is not a causal language model. Set model to one.")
    if not hf_config.get_text_config().num_hidden_layers:
        raise UserError(
            f"{folder / 'config.json'} has num_hidden_layers=0: a model needs a layer. Download the model again."
        )


def _from_hub(name: str, *, weights: bool, key: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    missing = f"No model {name!r} was found: it is not a folder here, and not a model on the Hugging Face hub"
    try:
        return Path(snapshot_download(name, ignore_patterns=None if weights else list(WEIGHT_FILES)))
    except HFValidationError as error:
        raise MissingModel(f"{missing}. Set {key} to a folder ('./name') or a hub name ('org/name').") from error
    except GatedRepoError as error:
        raise MissingModel(
            f"The model {name!r} is gated. Request access on its page of the Hugging Face hub, then log in with "
            "`hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise MissingModel(
            f"{missing}. Check the spelling; if the model is private, log in with `hf auth login`."
        ) from error
    except LocalEntryNotFoundError as error:
        raise MissingModel(
            f"There is no folder {name!r} here, and the Hugging Face hub cannot be reached from this machine. "
            f"Download the model on a machine with a network (`hf download {name} --local-dir FOLDER`), and set {key} "
            "to that folder."
        ) from error
    # Without a network the client raises any error of its transport.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise MissingModel(
            f"{missing} ({type(error).__name__}: {reason}). Set {key} to a folder or a hub name."
        ) from error
