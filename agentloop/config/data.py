"""`DataConfig`: the datasets of a run."""

from __future__ import annotations

from pydantic import Field

from agentloop.registry.options import Config, ConfigOptions, ConfigPath


class DataConfig(Config):
    """Datasets: a .jsonl, .jsonl.gz or .parquet file, a folder, a function 'file.py:name' / 'package.module:name', or a
    list of them."""

    train: ConfigPath | tuple[ConfigPath, ...]
    train_options: ConfigOptions = Field(default_factory=dict)
    """Arguments of the function that `train` names."""
    train_limit: int | None = Field(default=None, ge=1)
    """Use the first rows only."""
    shuffle: bool = True
    """A new order in every epoch."""
    eval: ConfigPath | tuple[ConfigPath, ...] | None = None
    """Held-out tasks."""
    eval_options: ConfigOptions = Field(default_factory=dict)
    """Arguments of the function that `eval` names."""
    eval_limit: int | None = Field(default=None, ge=1)
    """Use the first held-out rows only."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Leave out rows whose messages, with the tools, are more tokens than that. None: `limits.max_tokens` is the only
    bound, and an episode whose prompt is longer ends at once."""
