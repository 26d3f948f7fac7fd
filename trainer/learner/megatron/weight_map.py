"""Mapping between weights of Hugging Face and Megatron, and their split over ranks; exact in both directions.

A rule converts a group of Hugging Face tensors to one rank's shard of a Megatron tensor (`shard`), and the shards of
all ranks back to the group (`whole`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from agentloop.trainer.sizing.model_shape import ModelShape


class Rule(Protocol):
    """Conversion between a group of Hugging Face tensors and one tensor of Megatron."""

    @property
    def divides(self) -> bool:
        """Whether tensor-parallel ranks split the tensor."""
        ...

    def shard(self, parts: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
        """Return the shard of one rank."""
        ...

    def whole(self, shards: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors that `shard` split; `shards` has the shards of all ranks in order."""
        ...


@dataclass(slots=True, frozen=True)
class Same:
    """One tensor that every rank holds whole."""

    divides: bool = False

    def shard(self, parts: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
        return parts[0]

    def whole(self, shards: Sequence[Tensor]) -> list[Tensor]:
        return [shards[0]]


@dataclass(slots=True, frozen=True)
class Split:
    """One tensor, split along a dimension."""

    dim: int
    divides: bool = True

    def shard(self, parts: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
        return parts[0].chunk(ranks, self.dim)[rank]

    def whole(self, shards: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(list(shards), self.dim)]


@dataclass(slots=True, frozen=True)
class Stacked:
    """Tensors of equal size, each split by rows: a rank has its rows of the first, then of the second."""

    count: int
    divides: bool = True

    def shard(self, parts: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
        return torch.cat([part.chunk(ranks)[rank] for part in parts])

    def whole(self, shards: Sequence[Tensor]) -> list[Tensor]:
        pieces = [shard.chunk(self.count) for shard in shards]
        return [torch.cat([piece[number] for piece in pieces]) for number in range(self.count)]


@dataclass(slots=True, frozen=True)
class Attention:
    """Queries, keys and values: per group the rows of its queries, then keys, then values. Ranks split the groups."""

    groups: int
    queries_per_group: int
    divides: bool = True

    def shard(self, parts: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
        rows = [part.unflatten(0, (self.groups, -1)) for part in parts]
        return torch.cat(rows, 1).chunk(ranks)[rank].flatten(0, 1)

    def whole(self, shards: Sequence[Tensor]) -> list[Tensor]:
        rows = torch.cat(list(shards)).unflatten(0, (self.groups, -1))
        head = rows.shape[1] // (self.queries_per_group + 2)
        return [part.flatten(0, 1) for part in rows.split([self.queries_per_group * head, head, head], 1)]


@dataclass(slots=True, frozen=True)
class Entry:
    """One tensor of Megatron."""

    ours: str
    """Name on its stage, 'piece.name'; the layers of a piece are counted from 0."""
    theirs: tuple[str, ...]
    rule: Rule
    expert: int | None = None
    """Index of the expert, if the tensor belongs to one; expert-parallel ranks hold whole experts."""


@dataclass(slots=True, frozen=True)
class Block:
    """Entries that are sent together: those of a layer, the embedding, or the norm and head after the last layer."""

    stage: int
    entries: tuple[Entry, ...]


def blocks(shape: ModelShape, stages: int, pieces: int, *, qkv_bias: bool, num_local_experts: int) -> list[Block]:
    """Return the blocks of a model in the order of its layers, tied weights once.

    Each stage has `pieces` pieces of the model, which are assigned round-robin.
    """
    per_piece = shape.layers // (stages * pieces)
    found = [Block(0, (Entry("0.embedding.word_embeddings.weight", ("model.embed_tokens.weight",), Split(0)),))]
    for layer in range(shape.layers):
        piece, stage = divmod(layer // per_piece, stages)
        ours = f"{piece}.decoder.layers.{layer % per_piece}."
        entries = (*_attention(shape, layer, ours, qkv_bias), *_mlp(shape, layer, ours, num_local_experts))
        found.append(Block(stage, entries))
    last = [Entry(f"{pieces - 1}.decoder.final_layernorm.weight", ("model.norm.weight",), Same())]
    if not shape.tied:
        last.append(Entry(f"{pieces - 1}.output_layer.weight", ("lm_head.weight",), Split(0)))
    return [*found, Block(stages - 1, tuple(last))]


def tied_head(pieces: int) -> Entry:
    """Return the entry for the copy of a tied embedding on the last of several stages."""
    return Entry(f"{pieces - 1}.output_layer.weight", ("model.embed_tokens.weight",), Split(0))


def _attention(shape: ModelShape, layer: int, ours: str, qkv_bias: bool) -> Iterator[Entry]:
    theirs = f"model.layers.{layer}."
    qkv = Attention(shape.kv_heads, shape.heads // shape.kv_heads)
    yield Entry(f"{ours}input_layernorm.weight", (f"{theirs}input_layernorm.weight",), Same())
    for kind in ("weight", "bias") if qkv_bias else ("weight",):
        names = tuple(f"{theirs}self_attn.{part}_proj.{kind}" for part in "qkv")
        yield Entry(f"{ours}self_attention.linear_qkv.{kind}", names, qkv)
    if shape.qk_norm:
        for part in "qk":
            name = (f"{theirs}self_attn.{part}_norm.weight",)
            yield Entry(f"{ours}self_attention.{part}_layernorm.weight", name, Same())
    yield Entry(f"{ours}self_attention.linear_proj.weight", (f"{theirs}self_attn.o_proj.weight",), Split(1))
    yield Entry(f"{ours}pre_mlp_layernorm.weight", (f"{theirs}post_attention_layernorm.weight",), Same())


def _mlp(shape: ModelShape, layer: int, ours: str, num_local_experts: int) -> Iterator[Entry]:
    ours, theirs = f"{ours}mlp.", f"model.layers.{layer}.mlp."
    if not shape.num_experts:
        yield Entry(f"{ours}linear_fc1.weight", (f"{theirs}gate_proj.weight", f"{theirs}up_proj.weight"), Stacked(2))
        yield Entry(f"{ours}linear_fc2.weight", (f"{theirs}down_proj.weight",), Split(1))
        return
    yield Entry(f"{ours}router.weight", (f"{theirs}gate.weight",), Same())
    for expert in range(shape.num_experts):
        its, of = f"{ours}experts.local_experts.{expert % num_local_experts}.", f"{theirs}experts.{expert}."
        gate = (f"{of}gate_proj.weight", f"{of}up_proj.weight")
        yield Entry(f"{its}linear_fc1.weight", gate, Stacked(2), expert)
        yield Entry(f"{its}linear_fc2.weight", (f"{of}down_proj.weight",), Split(1), expert)
