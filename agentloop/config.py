"""Base of every part of the configuration. A leaf of the import tree."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Strict: an unknown key is an error. Attribute docstrings are the documentation of the keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
