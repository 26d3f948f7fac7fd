"""Tokenizers built in memory, and the templates of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentloop.rendering import renderer_for
from agentloop.rendering.template_renderer import TemplateRenderer

TEMPLATES = Path(__file__).parent / "templates"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]", "[RESULT]", "[/RESULT]"]
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
WORD_PATTERN = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CORPUS = [
    "def main():\n    return 42\n\n\nThe result is 3.14, isn't it?  \n\t<b>&amp;</b> {'a': [1, 2]}\r\n",
    "user\nassistant\ntool system \n<tool_response>\n 10 20 30\n</tool_response> [INST] call: /INST]",
    "h\u00e9llo w\u00f6rld \u6f22\u5b57 \U0001f642 Traceback (most recent call last): ValueError\n\n  indented",
]


@cache
def build_backend(kind: str) -> Tokenizer:
    """`split`, `gpt2`, `no_words` (byte-level), `bytes` (one token a byte; added tokens from 256 on) or `pieces`
    (sentencepiece-like: marks the beginning of a text)."""
    if kind == "pieces":
        backend = Tokenizer(models.BPE(byte_fallback=True, unk_token=None))
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first", split=False)
        backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
        alphabet = sorted({character for text in CORPUS for character in text.replace(" ", "\u2581")})
        trainer = trainers.BpeTrainer(
            vocab_size=700, special_tokens=[f"<0x{byte:02X}>" for byte in range(256)], initial_alphabet=alphabet
        )
        backend.train_from_iterator(CORPUS * 4, trainer)
        # The trainer made added tokens of the bytes; in real vocabularies of this kind they are ordinary tokens.
        backend = Tokenizer.from_str(json.dumps({**json.loads(backend.to_str()), "added_tokens": []}))
    else:
        backend = Tokenizer(models.BPE())
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
        split = pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level]) if kind == "split" else byte_level
        backend.normalizer = normalizers.NFC() if kind == "split" else None
        backend.decoder = decoders.ByteLevel()
        size = {"split": 420, "gpt2": 300, "no_words": 340, "bytes": 256}[kind]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        backend.train_from_iterator(CORPUS * 4, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet))
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return backend


def build_tokenizer(template: str | None, kind: str = "split") -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=build_backend(kind), eos_token="<|endoftext|>")
    if template:
        tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return tokenizer


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """Return `make_tokenizer(template, kind)`, which builds a tokenizer with the template of that file name."""
    return build_tokenizer


@pytest.fixture(scope="session")
def make_renderer() -> Callable[..., TemplateRenderer]:
    """Return `make_renderer(template, kind="split", **options)`, which caches one renderer for equal arguments."""

    @cache
    def cached(template: str, kind: str, options: tuple[tuple[str, Any], ...]) -> TemplateRenderer:
        return renderer_for(build_tokenizer(template, kind), chat_template_kwargs=dict(options))

    return lambda template, kind="split", **options: cached(template, kind, tuple(options.items()))
