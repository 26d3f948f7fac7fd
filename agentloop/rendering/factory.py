"""`renderer_for`: from a tokenizer, or the folder of a model, to a renderer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import UserError
from agentloop.rendering.formats import call_format, detect_format
from agentloop.rendering.inline import InlineFormat, InlineRenderer
from agentloop.rendering.template_renderer import TemplateRenderer
from agentloop.vision.processor import ImageProcessor, image_processor_for


def renderer_for(
    tokenizer: Any,
    *,
    tool_format: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    trusted_roles: Iterable[str] = ("system", "assistant"),
    chat_template: str | Path | None = None,
    vision: ImageProcessor | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    inline: InlineFormat | None = None,
) -> TemplateRenderer:
    """The renderer of a model.

    `tokenizer`: a fast tokenizer of transformers, or the path (or hub name) of a model.
    `tool_format`: how the model writes calls, one of `agentloop.rendering.formats`; by default what its chat template
    shows.
    `chat_template_kwargs`: handed to the template, such as `{"enable_thinking": False}`.
    `trusted_roles`: whose messages may hold control tokens; in the text of all others they are plain characters.
    `chat_template`: a file that replaces the model's own template.
    `vision`: the image processor of a tokenizer that is given as such; a model's folder brings its own, whose bounds
    of a picture's size `min_pixels` and `max_pixels` replace.
    `inline`: the model writes calls as tags in one long turn and reads their results there; tools are not shown then.

    Raises `UserError` for a model without chat template, without end-of-turn token, or without fast tokenizer, and for
    a vision model of an unknown kind.
    """
    if isinstance(tokenizer, str | Path):
        vision = vision or image_processor_for(tokenizer, min_pixels=min_pixels, max_pixels=max_pixels)
        tokenizer = _load(tokenizer)
    if chat_template is not None:
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = _read(chat_template)
    name = getattr(tokenizer, "name_or_path", "") or "this model"
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise UserError(
            f"The tokenizer of {name} ({type(tokenizer).__name__}) is not a fast one. agentloop needs tokenizer.json: "
            "convert it with AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
        )
    if not tokenizer.chat_template:
        raise UserError(
            f"The tokenizer of {name} has no chat template: there is neither a chat_template.jinja in its folder nor a "
            "chat_template in tokenizer_config.json. Base models come without one: copy chat_template.jinja from the "
            "instruction-tuned model of the family into the folder, or set tokenizer.chat_template."
        )
    options: dict[str, Any] = {
        "trusted_roles": frozenset(trusted_roles),
        "chat_template_kwargs": chat_template_kwargs or {},
        "vision": vision,
    }
    if inline is not None:
        return InlineRenderer(tokenizer, inline, **options)
    template = tokenizer.chat_template
    shown = "\n".join(template.values()) if isinstance(template, dict) else template
    return TemplateRenderer(
        tokenizer, call_format=call_format(tool_format) if tool_format else detect_format(shown), **options
    )


def _read(path: str | Path) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The chat template {path} cannot be read: {error}.") from error


def _load(path: str | Path) -> Any:
    from transformers import AutoTokenizer

    folder = Path(path)
    if folder.is_dir() and not (folder / "tokenizer.json").exists():
        raise UserError(
            f"{folder} has no tokenizer.json. Save the tokenizer there: tokenizer.save_pretrained({str(folder)!r})."
        )
    try:
        return AutoTokenizer.from_pretrained(str(path))
    # What a broken folder or an unknown name raises differs by file and version of the library.
    except Exception as error:
        raise UserError(
            f"No tokenizer can be loaded from {path}: {type(error).__name__}: {error}. Give the folder of a model that "
            "holds tokenizer.json and tokenizer_config.json, or its name on the hub."
        ) from error
