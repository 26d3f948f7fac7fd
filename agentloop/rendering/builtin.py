"""Chat templates of agentloop, `builtin:NAME`, for models whose own template does not support tools."""

from __future__ import annotations

from collections.abc import Container
from importlib.resources import files
from pathlib import Path

from agentloop.errors import UserError, nearest

PREFIX = "builtin:"
BUILTIN = {
    "hermes": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "qwen3": ("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
}
"""Template name -> tokens that the tokenizer must have."""


def checked(source: str) -> str:
    """Return a value of `rendering.chat_template`. Raises `UserError` for an unknown `builtin:NAME`."""
    name = source.removeprefix(PREFIX)
    if name != source and name not in BUILTIN:
        known = ", ".join(PREFIX + each for each in BUILTIN)
        raise UserError(
            f"There is no chat template {source!r}.{nearest(name, BUILTIN)} Set it to one of {known}, or to a file."
        )
    return source


def read_template(source: str | Path, model: str, tokens: Container[str]) -> str:
    """Return the text of a template, a file or `builtin:NAME`, for a model whose tokenizer has the added `tokens`.

    Raises `UserError` if it cannot be read, or if the tokenizer lacks tokens of a built-in template.
    """
    name = checked(str(source)).removeprefix(PREFIX)
    needed = () if name == str(source) else BUILTIN[name]
    if missing := [token for token in needed if token not in tokens]:
        raise UserError(
            f"rendering.chat_template is {source}, but the tokenizer of {model} has no {' or '.join(missing)}. "
            f"{ways_out(tokens)}"
        )
    return template_text(source)


def template_text(source: str | Path) -> str:
    """Return the text of a template, a file or `builtin:NAME`. Raises `UserError` if it cannot be read."""
    name = checked(str(source)).removeprefix(PREFIX)
    if name != str(source):
        return (files("agentloop.rendering") / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    try:
        return Path(source).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read the chat template {source}: {error}. Check the path.") from error


def ways_out(tokens: Container[str]) -> str:
    """Return advice for a missing chat template, or one without tools, given the tokens of the tokenizer."""
    fitting = [PREFIX + name for name, needed in BUILTIN.items() if all(token in tokens for token in needed)]
    own = f"to {' or '.join(fitting)}, or " if fitting else ""
    return (
        f"Either set rendering.chat_template {own}to a file with a template that shows tools; or set model to a model "
        "whose template supports tools, such as the instruction-tuned model of the family."
    )
