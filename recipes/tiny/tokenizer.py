"""Build a byte-level BPE tokenizer with the token conventions of Qwen3, in less than a second.

Any text encodes and decodes exactly (all 256 bytes are in the vocabulary), every digit is one token, and the markers of
the chat template are single tokens: `<|im_end|>` ends a turn, think and tool tags are ordinary added tokens.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from agentloop.recipes.tiny.corpus import corpus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 1280
"""Maximum BPE entries, without the markers."""

MAX_TOKENS = 1024
"""Maximum sequence length of the tiny model."""

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAG_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# Words with the mark before them, single digits, runs of marks, line ends, spaces: the split of Qwen2 and Qwen3.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def chat_template() -> str:
    """Return the chat template: prefix-stable, with tools in the system message and all thinking kept."""
    return (files(__package__) / "chat_template.jinja").read_text(encoding="utf-8")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer with its chat template. Its ids depend only on the version of `tokenizers`."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in TAG_TOKENS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_TOKENS,
    )
    fast.chat_template = chat_template()
    return fast
