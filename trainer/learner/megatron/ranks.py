"""The position of this rank in the parallel layout, which determines its part of the model and of the batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from agentloop.trainer.cluster.process_group import data_parallel_mesh
from agentloop.trainer.sizing.layouts import Layout


@dataclass(slots=True, frozen=True, eq=False)
class Ranks:
    """Sizes of megatron-core's groups, and the index of this rank in each."""

    tensor: int
    tensor_rank: int
    pipeline: int
    stage: int
    pieces: int
    """Number of model pieces on this rank; piece p of stage s has index p * stages + s among all."""
    context: int
    context_rank: int
    expert: int
    expert_rank: int
    data: int
    data_rank: int

    @property
    def is_first_stage(self) -> bool:
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage == self.pipeline - 1

    @property
    def reports(self) -> bool:
        """Whether this rank, among those that compute the loss of the same tokens, reports it."""
        return self.is_last_stage and self.tensor_rank == 0

    @classmethod
    def of(cls, layout: Layout, device: torch.device) -> Ranks:
        """Create the groups, and the process group if there is none."""
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

        data_parallel_mesh(device)
        if parallel_state.model_parallel_is_initialized():
            parallel_state.destroy_model_parallel()
        tensor, pipeline, context, expert = layout.tensor, layout.pipeline, layout.context, layout.expert
        parallel_state.initialize_model_parallel(
            tensor,
            pipeline,
            virtual_pipeline_model_parallel_size=layout.virtual if layout.virtual > 1 else None,
            context_parallel_size=context,
            expert_model_parallel_size=expert,
            expert_tensor_parallel_size=1,
            create_gloo_process_groups=False,
        )
        if device.type == "cuda":
            model_parallel_cuda_manual_seed(0)
        return cls(
            tensor,
            parallel_state.get_tensor_model_parallel_rank(),
            pipeline,
            parallel_state.get_pipeline_model_parallel_rank(),
            layout.virtual,
            context,
            parallel_state.get_context_parallel_rank(),
            expert,
            parallel_state.get_expert_model_parallel_rank(),
            parallel_state.get_data_parallel_world_size(),
            parallel_state.get_data_parallel_rank(),
        )

    @property
    def tensor_group(self) -> dist.ProcessGroup:
        from megatron.core import parallel_state

        return parallel_state.get_tensor_model_parallel_group()

    @property
    def pipeline_group(self) -> dist.ProcessGroup:
        from megatron.core import parallel_state

        return parallel_state.get_pipeline_model_parallel_group()

    @property
    def context_group(self) -> dist.ProcessGroup:
        from megatron.core import parallel_state

        return parallel_state.get_context_parallel_group()

    @property
    def expert_group(self) -> dist.ProcessGroup:
        from megatron.core import parallel_state

        return parallel_state.get_expert_model_parallel_group()
