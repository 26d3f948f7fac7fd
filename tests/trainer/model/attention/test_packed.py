from copy import deepcopy

import pytest
import torch
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    DeepseekV3Config,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

from agentloop.trainer.model.attention import packed as attention
from agentloop.trainer.model.attention.packed import PackedRow, packed_attention
from agentloop.trainer.model.attention.padded_layout import PaddedLayout, buckets

_SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
_LENGTHS = [5, 1, 17, 16, 40, 5]


def _model(config, implementation: str, seed: int = 0):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation=implementation, dtype=torch.float32)


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**_SHAPE, head_dim=8),
        Qwen3Config(**_SHAPE, head_dim=8, use_sliding_window=True, sliding_window=6, max_window_layers=1),
        Qwen2Config(**_SHAPE),
        LlamaConfig(**_SHAPE),
    ],
    ids=["qwen3", "qwen3-sliding", "qwen2", "llama"],
)
def test_packed_row_matches_separate_sequences(config):
    plain = _model(config, "eager")
    packed = _model(config, attention.register())
    packed.load_state_dict(plain.state_dict())
    ids = torch.randint(0, 64, (1, sum(_LENGTHS)))
    weight = torch.randn(sum(_LENGTHS), 32)

    hidden = packed.model(input_ids=ids, **PackedRow.of(_LENGTHS).kwargs()).last_hidden_state[0]
    expected = torch.cat([plain.model(input_ids=part).last_hidden_state[0] for part in ids.split(_LENGTHS, dim=1)])
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-5)

    (hidden * weight).sum().backward()
    (expected * weight).sum().backward()
    for (name, got), want in zip(packed.model.named_parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize(
    "config",
    [
        DeepseekV3Config(
            **_SHAPE | {"num_key_value_heads": 4},
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=12,
            first_k_dense_replace=2,
        ),
        Qwen3Config(**_SHAPE, head_dim=8),
    ],
    ids=["deepseek_v3: values have fewer features than keys", "qwen3"],
)
def test_a_row_without_its_padded_layout_matches_separate_sequences(config):
    """On CUDA no padded layout is made, and attention is one call of a kernel."""
    plain = _model(config, "eager")
    packed = _model(config, attention.register())
    packed.load_state_dict(plain.state_dict())
    ids = torch.randint(0, 64, (1, sum(_LENGTHS)))
    row = PackedRow.of(_LENGTHS, padded=False).kwargs()
    hidden = packed.model(input_ids=ids, **row).last_hidden_state[0]
    expected = torch.cat([plain.model(input_ids=part).last_hidden_state[0] for part in ids.split(_LENGTHS, dim=1)])
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-5)
    weight = torch.randn(sum(_LENGTHS), 32)
    (hidden * weight).sum().backward()
    (expected * weight).sum().backward()
    for (name, got), want in zip(packed.model.named_parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: name + text)


def test_packed_sequences_do_not_attend_to_each_other():
    model = _model(Qwen3Config(**_SHAPE, head_dim=8), attention.register())
    ids = torch.randint(0, 64, (1, 20))
    other = ids.clone()
    other[0, :12] = torch.randint(0, 64, (12,))
    row = PackedRow.of([12, 8]).kwargs()
    with torch.no_grad():
        first, second = (model.model(input_ids=tokens, **row).last_hidden_state[0] for tokens in (ids, other))
    assert torch.equal(first[12:], second[12:])
    assert not torch.equal(first[:12], second[:12])


def test_packed_attention_builds_no_mask(monkeypatch: pytest.MonkeyPatch):
    masks = []

    def spy(module, query, key, value, attention_mask, **kwargs):
        masks.append(attention_mask)
        return packed_attention(module, query, key, value, attention_mask, kernel="sdpa", **kwargs)

    name = attention.register()
    monkeypatch.setitem(AttentionInterface._global_mapping, name, spy)
    model = _model(Qwen3Config(**_SHAPE, head_dim=8), name)
    model.model(input_ids=torch.zeros(1, 7, dtype=torch.long), **PackedRow.of([3, 4]).kwargs())
    assert masks == [None, None]


def test_row_layout_gives_sequence_boundaries():
    row = PackedRow.of([3, 1, 2])
    assert row.position_ids.tolist() == [[0, 1, 2, 0, 0, 1]]
    assert row.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert row.cu_seqlens.dtype == torch.int32
    assert row.padded is not None
    assert PackedRow.of([3], padded=False).padded is None


def test_padded_layout_matches_hand_computed_example():
    layout = PaddedLayout.of([2, 10, 9])
    assert layout.shapes == ((2, 10), (1, 2))
    rows = torch.arange(21.0).reshape(21, 1, 1).requires_grad_()
    long, short = layout.pad(rows)
    assert long.squeeze().tolist() == [list(range(2, 12)), [*range(12, 21), 20]]
    assert short.flatten().tolist() == [0, 1]
    back = layout.unpad(torch.cat([part.transpose(1, 2).flatten(0, 1) for part in (long, short)]))
    assert torch.equal(back, rows)
    (back * rows.detach()).sum().backward()
    assert torch.equal(rows.grad, rows.detach())


def test_buckets_group_similar_lengths():
    assert buckets([100, 50, 95, 49, 84, 1], padding=1.2) == [[0, 2, 4], [1, 3], [5]]


def test_call_without_row_raises():
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="needs cu_seq_lens_q"):
        packed_attention(torch.nn.Module(), q, q, q, None, kernel="sdpa")
    row = PackedRow.of([3]).kwargs()
    with pytest.raises(ValueError, match="without a mask"):
        packed_attention(torch.nn.Module(), q, q, q, torch.ones(3, 3), kernel="sdpa", **row)
