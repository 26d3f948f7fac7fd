"""Layouts of a learner over GPUs, and the reasons why a layout is impossible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from agentloop.config.learner import BackendName, CheckpointingName, LearnerConfig, OffloadName
from agentloop.errors import UserError
from agentloop.trainer.sizing.model_shape import ModelShape

_LARGEST_BUDGET = 131072


@dataclass(slots=True, frozen=True, kw_only=True)
class Layout:
    """Layout of a learner: `gpus` ranks = data * tensor * pipeline * context."""

    backend: BackendName = "fsdp"
    gpus: int = 1
    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    """Pieces of the model on each pipeline rank."""
    context: int = 1
    """Ranks that share each sequence."""
    expert: int = 1
    """Ranks of a stage that share its experts; experts are never split."""
    copies: int = 1
    """Copies of the parameters that FSDP shards, each over its part of the GPUs (`learner.shard`)."""
    checkpointing: CheckpointingName = "off"
    offload: OffloadName = "off"
    token_budget: int = 16384
    """Tokens of a micro-batch over all its context ranks."""

    @classmethod
    def of(cls, config: LearnerConfig, gpus: int) -> Layout:
        """Return the layout of a configuration on `gpus` GPUs."""
        return cls(
            backend=config.backend,
            gpus=gpus,
            tensor=config.tensor_parallel,
            pipeline=config.pipeline_parallel,
            virtual=config.virtual_pipeline,
            context=config.context_parallel if config.backend == "megatron" else config.sequence_parallel,
            expert=config.expert_parallel,
            copies=(config.nodes or 1) if config.shard == "node" else 1,
            checkpointing=config.checkpointing,
            offload=config.offload,
            token_budget=config.token_budget,
        )

    @property
    def data(self) -> int:
        """Data-parallel ranks; 0 if the other degrees need more GPUs."""
        return self.gpus // (self.tensor * self.pipeline * self.context)

    @property
    def shards(self) -> int:
        """GPUs over which FSDP shards one copy of the parameters."""
        return self.gpus // self.copies

    @property
    def rank_tokens(self) -> int:
        """Tokens of a micro-batch on one rank."""
        return -(-self.token_budget // self.context)

    @property
    def num_settings(self) -> int:
        """Number of settings that differ from the simplest layout."""
        degrees = (self.tensor, self.pipeline, self.virtual, self.context, self.expert)
        return sum(n > 1 for n in degrees) + (self.offload != "off") + (self.checkpointing != "off")

    def settings(self) -> dict[str, str | int]:
        """Return the `learner.` settings of this layout, defaults included: a recipe may have other values."""
        is_megatron = self.backend == "megatron"
        return {
            "backend": self.backend,
            "tensor_parallel": self.tensor,
            "pipeline_parallel": self.pipeline,
            "virtual_pipeline": self.virtual,
            "context_parallel": self.context if is_megatron else 1,
            "sequence_parallel": 1 if is_megatron else self.context,
            "expert_parallel": self.expert,
            "shard": "node" if self.copies > 1 else "all",
            "checkpointing": self.checkpointing,
            "offload": self.offload,
            "token_budget": self.token_budget,
        }


def problems(layout: Layout, shape: ModelShape) -> Iterator[str]:
    """Yield a sentence for each reason, except memory, why the model cannot have this layout."""
    for name, ranks, count, what in (
        ("tensor_parallel", layout.tensor, shape.heads, "attention heads"),
        ("tensor_parallel", layout.tensor, shape.kv_heads, "key and value heads"),
        ("tensor_parallel", layout.tensor, shape.expert_mlp or shape.mlp, "features of the MLP"),
        ("tensor_parallel", layout.tensor, shape.vocab, "tokens of the vocabulary"),
        ("pipeline_parallel", layout.pipeline, shape.layers, "layers"),
        ("expert_parallel", layout.expert, shape.num_experts, "experts"),
    ):
        if ranks > 1 and (count % ranks or not count):
            yield f"{name}={ranks} does not divide the model's {count} {what}."
    if layout.virtual > 1:
        yield from _virtual_problems(layout, shape)
    shared = layout.tensor * layout.context
    if layout.context > 1 and shape.kv_heads % layout.tensor == 0 and shape.kv_heads % shared:
        yield (
            f"tensor_parallel * context_parallel = {shared} does not divide the model's {shape.kv_heads} key and value "
            "heads, which are split over the ranks that share a sequence."
        )
    model_ranks = layout.tensor * layout.pipeline * layout.context
    if layout.gpus % model_ranks:
        yield (
            f"tensor_parallel {layout.tensor} * pipeline_parallel {layout.pipeline} * context_parallel "
            f"{layout.context} = {model_ranks} does not divide {layout.gpus} ranks."
        )
    elif layout.gpus // layout.pipeline % layout.expert:
        yield f"expert_parallel={layout.expert} does not divide the {layout.gpus // layout.pipeline} ranks of a stage."
    if shape.has_tower and (layout.backend == "megatron" or layout.context > 1):
        yield "A model with a vision tower needs backend=fsdp without sequence_parallel."
    if layout.checkpointing == "sparse" and shape.num_experts:
        yield "checkpointing=sparse does not support layers with experts."
    if layout.checkpointing == "sparse" and layout.offload == "all":
        yield "checkpointing=sparse needs parameters gathered once, but offload=all gathers them for each layer."
    if layout.backend == "fsdp" and (layout.tensor, layout.pipeline, layout.expert) != (1, 1, 1):
        yield "backend=fsdp shards parameters over all ranks: tensor, pipeline and expert parallelism need megatron."


def _virtual_problems(layout: Layout, shape: ModelShape) -> Iterator[str]:
    if layout.pipeline == 1:
        yield f"virtual_pipeline={layout.virtual} needs pipeline_parallel above 1: a single stage never waits."
    elif shape.layers % layout.pipeline == 0 and shape.layers % (layout.pipeline * layout.virtual):
        pieces = layout.pipeline * layout.virtual
        yield (
            f"pipeline_parallel {layout.pipeline} * virtual_pipeline {layout.virtual} = {pieces} does not divide the "
            f"model's {shape.layers} layers."
        )


def check(layout: Layout, shape: ModelShape) -> None:
    """Raise `UserError` with all problems if the model cannot have the layout."""
    if found := list(problems(layout, shape)):
        raise UserError(
            f"The learner's layout is impossible. {' '.join(found)} `agentloop plan` lists layouts that fit."
        )


def candidates(
    gpus: int, gpus_per_node: int, longest: int, backends: tuple[BackendName, ...], shape: ModelShape
) -> Iterator[Layout]:
    """Yield layouts of powers of two, with tensor parallelism within a node and budgets from `longest` tokens up."""
    powers = [2**n for n in range(10) if 2**n <= gpus]
    budgets = [longest * times for times in (1, 2, 4, 8) if times == 1 or longest * times <= _LARGEST_BUDGET]
    for backend in backends:
        choices = _choices(backend, powers, gpus_per_node, has_experts=shape.num_experts > 0)
        for checkpointing, offload, tensor, pipeline, context, expert in product(*choices):
            if gpus % (tensor * pipeline * context):
                continue
            for budget in budgets:
                yield Layout(
                    backend=backend,
                    gpus=gpus,
                    tensor=tensor,
                    pipeline=pipeline,
                    context=context,
                    expert=expert,
                    checkpointing=checkpointing,
                    offload=offload,
                    token_budget=budget,
                )


def _choices(backend: BackendName, powers: list[int], gpus_per_node: int, *, has_experts: bool) -> tuple[list, ...]:
    """Return the backend's choices of checkpointing, offload, tensor, pipeline, context and expert."""
    if backend == "megatron":
        tensors = [n for n in powers if n <= gpus_per_node]
        return ["off", "selective", "full"], ["off"], tensors, powers, powers, powers if has_experts else [1]
    kept = ["off", "selective", "full"] + (
        ["sparse"] if len(powers) == 1 else []
    )  # several GPUs may be unable to gather once
    return kept, ["off", "optimizer", "all"], [1], [1], powers, [1]
