"""Base of every part of the configuration. A leaf of the import tree."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Strict: an unknown key is an error. Attribute docstrings are the documentation of the keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class _HasPaths:
    """Marks a string, or what holds strings, that may be paths."""


HAS_PATHS = _HasPaths()

ConfigPath = Annotated[str, HAS_PATHS]
"""A path, or a name that is none: what `config_loading.anchored` says. A spec 'file.py:name' has a path,
'package.module:name' not."""

ConfigOptions = Annotated[dict[str, Any], HAS_PATHS]
"""Arguments of something that the config names, with paths among them."""


def named(value: Any) -> Any:
    """Read a plain string as the name of something without options."""
    return {"name": value} if isinstance(value, str) else value
