"""Load the weights of a Megatron model from a Hugging Face folder, and gather them, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from agentloop.errors import UserError
from agentloop.trainer.learner.checkpoint_files import CheckpointFiles
from agentloop.trainer.learner.megatron.ranks import Ranks
from agentloop.trainer.learner.megatron.weight_map import Block, Entry, blocks, tied_head
from agentloop.trainer.sizing.model_shape import ModelShape


class Weights:
    """Weight mapping of one model on these ranks."""

    def __init__(self, shape: ModelShape, ranks: Ranks, *, qkv_bias: bool) -> None:
        self._ranks = ranks
        self._local_experts = max(shape.num_experts // ranks.expert, 1)
        self._blocks = blocks(
            shape, ranks.pipeline, ranks.pieces, qkv_bias=qkv_bias, num_local_experts=self._local_experts
        )
        self._tied = shape.tied

    def load(self, folder: Path, model: nn.Module) -> dict[str, tuple[int, ...]]:
        """Load only this rank's weights; return the shapes of all tensors in the folder.

        Raises `UserError` if the folder lacks a tensor, or has one with another shape.
        """
        files = CheckpointFiles(folder)
        parameters = dict(model.named_parameters())
        loaded = set()
        for entry in self._own_entries():
            parts = [files.read(name) for name in entry.theirs]
            ranks, rank = (1, 0) if entry.expert is not None else (self._ranks.tensor, self._ranks.tensor_rank)
            value = entry.rule.shard(parts, rank, ranks)
            target = parameters[entry.ours]
            if target.shape != value.shape:
                raise UserError(
                    f"{entry.theirs[0]} in {folder} has the wrong shape: this rank's part is {tuple(value.shape)}, not "
                    f"{tuple(target.shape)}. Use weights that match the config.json in the folder."
                )
            target.data.copy_(value)
            loaded.add(entry.ours)
        missing = parameters.keys() - loaded
        assert not missing, f"the map lacks {sorted(missing)}"
        return files.shapes

    def mark(self, model: nn.Module) -> None:
        """Mark split parameters and expert parameters for megatron-core."""
        from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes

        parameters = dict(model.named_parameters())
        for entry in self._own_entries():
            parameter = parameters[entry.ours]
            if entry.expert is not None:
                # Gradients of experts are reduced over ranks with the same experts, including tensor-parallel ranks.
                parameter.allreduce = False  # type: ignore[attr-defined]
            # Whole parameters count in the gradient norm on only one tensor-parallel rank. The optimizer's shards of
            # experts differ on all of these ranks.
            if (entry.rule.divides or entry.expert is not None) and not hasattr(parameter, "tensor_model_parallel"):
                set_tensor_model_parallel_attributes(parameter, True, getattr(entry.rule, "dim", 0), 1)

    def gathered(self, model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, Tensor]]:
        """Yield unsharded tensors under their Hugging Face names on every rank; all ranks must consume all of them.

        The ranks of a block's stage gather it and broadcast it to the other stages. At most one block is unsharded at a
        time, in one message per group.
        """
        parameters = dict(model.named_parameters())
        for block in self._blocks:
            found = self._gather_block(block, parameters) if block.stage == self._ranks.stage else {}
            yield from self._to_all_stages(block, found, shapes, next(iter(parameters.values())))

    def _own_entries(self) -> Iterator[Entry]:
        for block in self._blocks:
            if block.stage == self._ranks.stage:
                yield from (entry for entry in block.entries if self._has(entry))
        if self._tied and self._ranks.is_last_stage and not self._ranks.is_first_stage:
            yield tied_head(self._ranks.pieces)

    def _has(self, entry: Entry) -> bool:
        return entry.expert is None or entry.expert // self._local_experts == self._ranks.expert_rank

    def _gather_block(self, block: Block, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        ranks = self._ranks
        divided = [entry for entry in block.entries if entry.rule.divides and entry.expert is None]
        experts = [entry for entry in block.entries if entry.expert is not None]
        found: dict[str, Tensor] = {}
        for entry in block.entries:
            if not entry.rule.divides:
                found |= _named(entry, [parameters[entry.ours].detach()])
        if divided:
            mine = [parameters[entry.ours].detach() for entry in divided]
            shards = _all_gather(mine, ranks.tensor_group, ranks.tensor)
            for number, entry in enumerate(divided):
                found |= _named(entry, [shard[number] for shard in shards])
        if experts:
            local = [entry for entry in experts if self._has(entry)]
            by_rank = _all_gather(
                [parameters[entry.ours].detach() for entry in local], ranks.expert_group, ranks.expert
            )
            everywhere = [part for shard in by_rank for part in shard]
            for entry, part in zip(experts, everywhere, strict=True):
                found |= _named(entry, [part])
        return found

    def _to_all_stages(
        self, block: Block, found: dict[str, Tensor], shapes: Mapping[str, tuple[int, ...]], like: Tensor
    ) -> Iterator[tuple[str, Tensor]]:
        names = [name for entry in block.entries for name in entry.theirs]
        if self._ranks.pipeline == 1:
            yield from ((name, found[name]) for name in names)
            return
        sizes = [torch.Size(shapes[name]).numel() for name in names]
        if found:
            flat = torch.cat([found[name].reshape(-1) for name in names])
        else:
            flat = torch.empty(sum(sizes), dtype=like.dtype, device=like.device)
        group = self._ranks.pipeline_group
        dist.broadcast(flat, dist.get_global_rank(group, block.stage), group=group)
        for name, part in zip(names, flat.split(sizes), strict=True):
            yield name, part.view(shapes[name])


def _named(entry: Entry, shards: list[Tensor]) -> dict[str, Tensor]:
    return dict(zip(entry.theirs, entry.rule.whole(shards), strict=True))


def _all_gather(parts: list[Tensor], group: dist.ProcessGroup, ranks: int) -> list[list[Tensor]]:
    """Gather the parts of every rank, which have the same shapes, in one message."""
    if ranks == 1:
        return [parts]
    flat = torch.cat([part.reshape(-1) for part in parts])
    everywhere = flat.new_empty(ranks, len(flat))
    dist.all_gather_into_tensor(everywhere.view(-1), flat, group=group)
    sizes = [part.numel() for part in parts]
    return [[piece.view(part.shape) for piece, part in zip(row.split(sizes), parts, strict=True)] for row in everywhere]
