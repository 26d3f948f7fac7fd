"""Convert the model and the datasets."""

from __future__ import annotations

from typing import Any

from agentloop.trainer.from_verl.config import Settings, VerlConfig, positive


def data(verl: VerlConfig) -> Settings:
    """Convert the model, the dataset files and their limits."""
    if verl.get("data.custom_cls.path"):
        verl.lack("data.custom_cls: write your own dataset as a function here: data.train: 'file.py:rows'.")
    if verl.get("data.sampler.class_path"):
        verl.lack("data.sampler: tasks are shuffled for every epoch here, or keep their order (data.shuffle).")
    for key, ours in (("prompt_key", "prompt"), ("image_key", "images"), ("reward_fn_key", "data_source")):
        verl.unsupported(f"data.{key}", f"rename the column to {ours!r}.", harmless=(None, ours))
    shuffle = verl.get("data.shuffle")
    limit = positive(verl.number("data.train_max_samples"))
    if limit and shuffle:
        verl.note(f"data.train_max_samples: verl draws {limit} rows; agentloop takes the first ones.")
    return {
        "model": verl.get("actor_rollout_ref.model.path"),
        "data.train": _files(verl.get("data.train_files")),
        "data.train_limit": limit,
        "data.shuffle": shuffle,
        "data.eval": _files(verl.get("data.val_files")),
        "data.eval_limit": positive(verl.number("data.val_max_samples")),
        "data.max_prompt_tokens": _longest_prompt(verl),
    }


def _files(files: Any) -> Any:
    """Return the file of a list with one item, and other values unchanged."""
    return files[0] if isinstance(files, list) and len(files) == 1 else files or None


def _longest_prompt(verl: VerlConfig) -> int | None:
    """Return the bound if verl filters longer prompts; None if verl truncates them or fails."""
    cut = verl.get("data.truncation", default="error")
    if verl.get("data.filter_overlong_prompts", default=False):
        return int(verl.number("data.max_prompt_length", default=512))
    if cut != "error":
        verl.note(
            f"data.truncation={cut}: verl cuts prompts of more than data.max_prompt_length tokens. Here they are "
            "kept whole and leave less room for the episode."
        )
    return None
