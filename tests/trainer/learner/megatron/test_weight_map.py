"""Tensors are equal after their conversion to Megatron's layout and back, for any number of ranks; none is started."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from agentloop.errors import UserError
from agentloop.trainer.learner.checkpoint_files import CheckpointFiles, write_checkpoint
from agentloop.trainer.learner.megatron.weight_map import Attention, Same, Split, Stacked, blocks
from agentloop.trainer.sizing.model_shape import ModelShape


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


@given(st.sampled_from([1, 2, 4]), st.sampled_from([(4, 2), (8, 1), (4, 4)]), st.sampled_from([0, 3]))
def test_queries_keys_and_values_come_back_bit_for_bit(ranks: int, heads: tuple[int, int], width: int):
    groups, per_group = heads
    rest = (width,) if width else ()
    parts = [_numbers(groups * count * 6, *rest) for count in (per_group, 1, 1)]
    rule = Attention(groups, per_group)
    shards = [rule.shard(parts, rank, ranks) for rank in range(ranks)]
    assert {shard.shape for shard in shards} == {(groups * (per_group + 2) * 6 // ranks, *rest)}
    for got, want in zip(rule.whole(shards), parts, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_other_rules_come_back_bit_for_bit(ranks: int):
    for rule, parts in (
        (Same(), [_numbers(5)]),
        (Split(0), [_numbers(8, 3)]),
        (Split(1), [_numbers(3, 8)]),
        (Stacked(2), [_numbers(8, 3), _numbers(8, 3)]),
    ):
        whole = rule.whole([rule.shard(parts, rank, ranks) for rank in range(ranks)])
        assert all(torch.equal(got, want) for got, want in zip(whole, parts, strict=True))


def test_rows_of_attention_are_where_megatron_looks_for_them():
    # 2 groups of 2 queries, heads of 1 row: q0 q1 k0 v0 | q2 q3 k1 v1
    query, key, value = torch.arange(4)[:, None], torch.arange(10, 12)[:, None], torch.arange(20, 22)[:, None]
    rule = Attention(groups=2, queries_per_group=2)
    assert rule.shard([query, key, value], 0, 1).flatten().tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    assert rule.shard([query, key, value], 1, 2).flatten().tolist() == [2, 3, 11, 21]


def test_gate_and_rise_of_each_rank_are_side_by_side():
    gate, rise = torch.arange(4)[:, None], torch.arange(10, 14)[:, None]
    assert Stacked(2).shard([gate, rise], 1, 2).flatten().tolist() == [2, 3, 12, 13]


@pytest.mark.parametrize(
    ("name", "stages", "pieces", "experts"), [("qwen3", 1, 1, 1), ("qwen2", 2, 2, 1), ("moe", 4, 1, 2)]
)
def test_the_map_names_every_tensor_of_the_checkpoint_once(
    models: Path, name: str, stages: int, pieces: int, experts: int
):
    shape = ModelShape.from_config(AutoConfig.from_pretrained(models / name))
    found = blocks(shape, stages, pieces, qkv_bias=name == "qwen2", num_local_experts=experts)
    theirs = [tensor for block in found for entry in block.entries for tensor in entry.theirs]
    assert sorted(theirs) == sorted(CheckpointFiles(models / name).shapes)
    layers = [block.stage for block in found[1:-1]]
    assert layers == [stage for _ in range(pieces) for stage in range(stages) for _ in range(4 // stages // pieces)]
    assert (found[0].stage, found[-1].stage) == (0, stages - 1)
    assert {entry.ours.split(".")[0] for block in found for entry in block.entries} == set(map(str, range(pieces)))


def test_files_are_split_and_read_again(tmp_path: Path):
    tensors = {f"t{number}": _numbers(4, 5) for number in range(3)}
    write_checkpoint(tmp_path, tensors.items(), largest_file=100)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]
    files = CheckpointFiles(tmp_path)
    assert all(torch.equal(files.read(name), tensor) for name, tensor in tensors.items())
    with pytest.raises(UserError, match="have no t9"):
        files.read("t9")
    with pytest.raises(UserError, match=r"has no \*.safetensors"):
        CheckpointFiles(tmp_path / "nowhere")
