"""Piecewise encoding against the tokenizer itself."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from agentloop.rendering.encoding import TextEncoder
from agentloop.rendering.word_cache import word_cache_for

KINDS = ("split", "gpt2", "no_words", "pieces", "bytes")
text_with_tokens = st.lists(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
    | st.sampled_from(["<|im_end|>", "<think>", "\n", " ", "</tool_call>", "[INST]", "<|im_", "don't 12"]),
    max_size=8,
).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@given(text=text_with_tokens)
@settings(max_examples=60, deadline=None)
def test_rendered_text_encodes_like_the_tokenizer(encoder_of, kind, text):
    encoder, backend = encoder_of(kind)
    assert encoder.encode_rendered(text, at_start=True) == backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
@given(text=text_with_tokens)
@settings(max_examples=60, deadline=None)
def test_escaped_text_has_no_added_tokens_and_round_trips(encoder_of, kind, text):
    encoder, _ = encoder_of(kind)
    escaped = encoder.escaping.hide(text)
    assert encoder.escaping.show(escaped) == text
    added = set(encoder.added.values())
    assert added.isdisjoint(encoder.encode_rendered(escaped))
    assert encoder.encode_rendered(escaped) == encoder.encode_plain(text)
    if kind == "no_words":
        assert encoder.decode(encoder.encode_plain(text)) == text


@pytest.mark.parametrize("kind", KINDS)
@given(ids=st.lists(st.integers(0, 720), max_size=12))
@settings(max_examples=200, deadline=None)
def test_ids_decode_like_the_tokenizer_also_if_they_are_half_a_character_or_unknown(encoder_of, kind, ids):
    encoder, backend = encoder_of(kind)
    assert encoder.decode(ids) == backend.decode(ids, skip_special_tokens=False)


@pytest.fixture(scope="session")
def encoder_of(make_tokenizer):
    """Return `encoder_of(kind)`, which builds the encoder of a tokenizer, and the tokenizer."""

    @cache
    def build(kind):
        backend = make_tokenizer(None, kind).backend_tokenizer
        return TextEncoder(backend), backend

    return build


def test_added_tokens_may_strip_whitespace(make_tokenizer):
    backend = Tokenizer.from_str(make_tokenizer(None, "bytes").backend_tokenizer.to_str())
    backend.add_special_tokens([AddedToken("<end>", rstrip=True), AddedToken("<begin>", lstrip=True)])
    text = "a <end> \n b \n<begin> c<end>"
    assert TextEncoder(backend).encode_rendered(text) == backend.encode(text, add_special_tokens=False).ids


def test_escaping_holds_if_the_vocabulary_contains_control_tokens():
    """Unigram vocabularies contain the added tokens as pieces, so plain text could produce them."""
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", -1.0), *((c, -5.0) for c in "</s>ab")], unk_id=0))
    backend.add_special_tokens(["</s>"])
    encoder = TextEncoder(backend)
    assert encoder.encode_rendered("a</s>b") == [6, 1, 7]
    assert encoder.encode_plain("a</s>b") == [6, 2, 3, 4, 5, 7]


@pytest.mark.parametrize(("kind", "known"), [("split", True), ("gpt2", True), ("no_words", False), ("pieces", False)])
def test_word_cache_is_used_only_for_supported_tokenizers(encoder_of, kind, known):
    assert (encoder_of(kind)[0].words is not None) == known


@given(text=st.text(st.characters(max_codepoint=127), max_size=60))
@settings(max_examples=150, deadline=None)
def test_cached_words_encode_like_the_tokenizer(encoder_of, text):
    for kind in ("split", "gpt2"):
        encoder, _ = encoder_of(kind)
        assert encoder.words.encode(text) == encoder.plain.encode(text, add_special_tokens=False).ids


def test_pattern_with_a_different_meaning_in_python_is_not_used():
    """The check against the tokenizer finds that this pattern leaves gaps between words."""
    from tokenizers import Regex

    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[]))
    split = pre_tokenizers.Split(Regex(r"\p{L}+"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    assert word_cache_for(backend) is None
