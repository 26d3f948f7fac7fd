"""`DataConfig`: the datasets of a run."""

from __future__ import annotations

from pydantic import Field

from agentloop.registry.options import Config, ConfigOptions, ConfigPath


class DataConfig(Config):
    """Datasets of a run.

    A dataset is a .jsonl, .jsonl.gz or .parquet file, a folder, a function 'file.py:name' / 'package.module:name', or a
    list of these.
    """

    train: ConfigPath | tuple[ConfigPath, ...]
    train_options: ConfigOptions = Field(default_factory=dict)
    """Arguments of the function in `train`."""
    train_limit: int | None = Field(default=None, ge=1)
    """Number of rows to use, from the first; None: all."""
    shuffle: bool = True
    """Use another order in every epoch."""
    eval: ConfigPath | tuple[ConfigPath, ...] | None = None
    """Held-out tasks."""
    eval_options: ConfigOptions = Field(default_factory=dict)
    """Arguments of the function in `eval`."""
    eval_limit: int | None = Field(default=None, ge=1)
    """Number of held-out rows to use, from the first; None: all."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Skip rows whose messages and tools have more tokens. None: only `limits.max_tokens` applies, and an episode with
    a longer prompt ends at once."""
