"""Fields that servers of these APIs know, vLLM's among them, and that would change the tokens or the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REMOVE = "Remove it."
_FORM = "Use {schema_field}."
_FIELDS = {
    "add_generation_prompt": _REMOVE,
    "add_special_tokens": _REMOVE,
    "allowed_token_ids": _REMOVE,
    "bad_words": _REMOVE,
    "best_of": _REMOVE,
    "chat_template": "Put it into the folder of the model.",
    "chat_template_kwargs": "Set rendering.chat_template_kwargs in the config of the run.",
    "continue_final_message": _REMOVE,
    "documents": _REMOVE,
    "echo": _REMOVE,
    "frequency_penalty": _REMOVE,
    "guided_choice": _FORM,
    "guided_grammar": _FORM,
    "guided_json": _FORM,
    "guided_regex": _FORM,
    "ignore_eos": _REMOVE,
    "include_stop_str_in_output": _REMOVE,
    "length_penalty": _REMOVE,
    "logit_bias": _REMOVE,
    "logits_processors": _REMOVE,
    "logprob_token_ids": _REMOVE,
    "media_io_kwargs": _REMOVE,
    "min_p": _REMOVE,
    "min_tokens": _REMOVE,
    "mm_processor_kwargs": _REMOVE,
    "presence_penalty": _REMOVE,
    "prompt_logprobs": _REMOVE,
    "repetition_detection": _REMOVE,
    "repetition_penalty": _REMOVE,
    "return_prompt_text": _REMOVE,
    "return_token_offsets": _REMOVE,
    "return_tokens_as_token_ids": _REMOVE,
    "stop_token_ids": "Use stop strings.",
    "structured_outputs": _FORM,
    "thinking_token_budget": _REMOVE,
    "top_logprobs": _REMOVE,
    "truncate_prompt_tokens": _REMOVE,
    "use_beam_search": _REMOVE,
    "vllm_xargs": _REMOVE,
    "watermarking": _REMOVE,
}
"""Unsupported fields, each with what to do instead."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (None, True),
    "best_of": (None, 0, 1),
    "guided_json": (None,),
    "length_penalty": (None, 1),
    "n": (None, 1),
    "repetition_penalty": (None, 1),
    "thinking_token_budget": (None,),
    "truncate_prompt_tokens": (None,),
}
"""Values without effect; those of other fields are None, false, 0 and what is empty."""


def first_unsupported(given: Mapping[str, Any], own: Mapping[str, str], schema_field: str) -> tuple[str, str] | None:
    """Return the first field with an effect that is not supported, and what to do instead; None if there is none.

    `own` are further such fields of one API, whose field for JSON Schemas is `schema_field`.
    """
    for name, value in given.items():
        instead = own.get(name) or _FIELDS.get(name)
        has_effect = value not in _NEUTRAL[name] if name in _NEUTRAL else bool(value)
        if instead is not None and has_effect:
            return name, instead.format(schema_field=schema_field)
    return None
