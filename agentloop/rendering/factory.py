"""`renderer_for`: creates a renderer from a tokenizer or the folder of a model."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import UserError
from agentloop.rendering.builtin import read_template, ways_out
from agentloop.rendering.formats import call_format, detect_format
from agentloop.rendering.inline import InlineFormat, InlineRenderer
from agentloop.rendering.parsing import CallsInThinking
from agentloop.rendering.template_renderer import TemplateRenderer
from agentloop.vision.processor import ImageProcessor, image_processor_for

_LOADING = threading.Lock()
"""Held while transformers loads: its lazy imports fail in two threads at once."""


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
    calls_in_thinking: CallsInThinking = "feedback",
) -> TemplateRenderer:
    """Return the renderer of a model.

    `tokenizer`: a fast tokenizer of transformers, or the path (or hub name) of a model, whose turns also end with the
    `eos_token_id` of generation_config.json. `tool_format`: the format of calls, one of `agentloop.rendering.formats`;
    default: that of the chat template. `chat_template_kwargs`: arguments of the template, such as `{"enable_thinking":
    False}`. `trusted_roles`: roles whose messages may contain tags such as `<think>`. In other messages tags are plain
    characters; the tokens that begin and end messages are plain characters in all of them. `chat_template`: a file, or
    `builtin:NAME`, that replaces the model's own template. `vision`: the image processor, if `tokenizer` is an object;
    the folder of a model has its own. `min_pixels`, `max_pixels`: bounds of the image size, instead of those of the
    model's image processor. `inline`: calls are tags inside one long turn and are followed by their results; the prompt
    then shows no tools. `calls_in_thinking`: handling of a call inside thinking that is never closed. With `feedback`
    it is not run, and the model gets the advice to close its thinking. With `execute` it ends the thinking and runs.

    Raises `UserError` for a model without chat template, end-of-turn token or fast tokenizer, and for an unsupported
    vision model.
    """
    end_token_ids: list[int] = []
    if isinstance(tokenizer, str | Path):
        with _LOADING:
            end_token_ids = _generation_ends(tokenizer)
            vision = vision or image_processor_for(tokenizer, min_pixels=min_pixels, max_pixels=max_pixels)
            tokenizer = _load(tokenizer)
    if chat_template is not None:
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = read_template(chat_template, _name(tokenizer), _added(tokenizer))
    name = _name(tokenizer)
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise UserError(
            f"The tokenizer of {name} ({type(tokenizer).__name__}) is not a fast tokenizer. agentloop needs "
            "tokenizer.json: convert it with AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
        )
    if not tokenizer.chat_template:
        raise UserError(
            f"The tokenizer of {name} has no chat template: there is neither a chat_template.jinja in its folder nor a "
            f"chat_template in tokenizer_config.json. Base models come without one. {ways_out(_added(tokenizer))}"
        )
    options: dict[str, Any] = {
        "trusted_roles": frozenset(trusted_roles),
        "chat_template_kwargs": chat_template_kwargs or {},
        "vision": vision,
        "end_token_ids": end_token_ids,
        "calls_in_thinking": calls_in_thinking,
    }
    if inline is not None:
        return InlineRenderer(tokenizer, inline, **options)
    template = tokenizer.chat_template
    shown = "\n".join(template.values()) if isinstance(template, dict) else template
    return TemplateRenderer(
        tokenizer, call_format=call_format(tool_format) if tool_format else detect_format(shown), **options
    )


def _name(tokenizer: Any) -> str:
    return str(getattr(tokenizer, "name_or_path", "") or "this model")


def _added(tokenizer: Any) -> Mapping[str, int]:
    return tokenizer.get_added_vocab() if hasattr(tokenizer, "get_added_vocab") else {}


def _generation_ends(model: str | Path) -> list[int]:
    """Return the end tokens of the model's generation config: one id, several or none."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(str(model)).eos_token_id
    except OSError:  # the model has no such file
        return []
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


def _load(path: str | Path) -> Any:
    from transformers import AutoTokenizer

    folder = Path(path)
    if folder.is_dir() and not (folder / "tokenizer.json").exists():
        raise UserError(
            f"{folder} has no tokenizer.json. Save the tokenizer in it: tokenizer.save_pretrained({str(folder)!r})."
        )
    try:
        return AutoTokenizer.from_pretrained(str(path))
    # The type of error for a broken folder or an unknown name depends on the file and the library version.
    except Exception as error:
        raise UserError(
            f"Cannot load a tokenizer from {path}: {type(error).__name__}: {error}. Set the folder of a model with "
            "tokenizer.json and tokenizer_config.json, or its name on the hub."
        ) from error
