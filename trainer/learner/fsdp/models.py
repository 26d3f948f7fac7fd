"""The models of an FSDP learner: load them, check them, and place them on the ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.cluster.process_group import data_parallel_mesh, node_mesh, sequence_group
from agentloop.trainer.learner.checks import packing_check, replay_check
from agentloop.trainer.learner.fsdp.sharded import ShardedModel, fits_unsharded
from agentloop.trainer.learner.fsdp.unsharded import UnshardedModel
from agentloop.trainer.model import fp8, lora
from agentloop.trainer.model.attention.choice import choose
from agentloop.trainer.model.attention.sequence_parallel import SequenceGroup
from agentloop.trainer.model.packed_lm import PackedCausalLM, load_packed_lm


class Models:
    """Loads the models of one learner for this rank and its device."""

    compute_dtype: torch.dtype
    padded: bool
    """Whether attention or recurrent layers need the padded layout of rows."""
    shares_prefixes: bool
    """Whether the prompt of a group is only once in a row."""
    gathers_once: bool
    """Whether parameters are gathered once per mini-batch, not layer by layer."""
    offload: str
    """Value of `learner.offload`; "off" without a GPU."""

    def __init__(self, config: LearnerConfig, device: torch.device) -> None:
        self._config, self._device = config, device
        self.mesh: DeviceMesh = data_parallel_mesh(device)
        self.sequence: SequenceGroup | None = sequence_group(self.mesh, config.sequence_parallel)
        self._shards = node_mesh(self.mesh, config.nodes) if config.shard == "node" else self.mesh
        self.compute_dtype = getattr(torch, config.compute_dtype)
        self._kernel = choose(config.attention, device, self.compute_dtype)
        if config.fp8 != "off":
            fp8.check(device)
        self.padded = self._kernel == "sdpa"
        self.offload = config.offload if device.type == "cuda" else "off"

    def policy(self, wrap: Callable[[PackedCausalLM], PackedCausalLM]) -> PackedCausalLM:
        """Return the model to train, checked and on the device, but not yet placed.

        `wrap` may replace the head of the checked model. Raises `UserError` if the configuration or the model is
        unusable.
        """
        config = self._config
        compiled = self._device.type == "cuda" if config.compile_layers is None else config.compile_layers
        # Frozen weights can stay in compute_dtype.
        dtype = config.compute_dtype if config.lora else config.param_dtype
        policy = load_packed_lm(
            Path(config.model).expanduser(),
            getattr(torch, dtype),
            kernel=self._kernel,
            checkpointing=config.checkpointing,
            compiled=compiled and self._kernel != "sdpa",
            sequence=self.sequence,
            adapt=self._adapt,
        )
        if config.freeze_vision:
            policy.freeze_vision()
        self.shares_prefixes = self._decide_sharing(policy)
        self._check(policy.to(self._device))
        if config.router_replay:
            replay_check.check(policy)
        self.padded |= policy.recurrent.padded
        policy = wrap(policy)
        self.gathers_once = self._decide_gathering(policy)
        return policy.to(self._device)

    def reference(self) -> PackedCausalLM:
        """Return the frozen reference model on the device, but not yet placed. Call it after `policy`."""
        config = self._config
        folder = Path(config.reference or config.model).expanduser()
        key = "learner.reference" if config.reference else "model"
        reference = load_packed_lm(folder, self.compute_dtype, kernel=self._kernel, sequence=self.sequence, key=key)
        reference = reference.requires_grad_(False).to(self._device)
        self.padded |= reference.recurrent.padded
        if folder != Path(config.model).expanduser():
            self._check(reference)
        return reference

    def place(self, policy: PackedCausalLM) -> UnshardedModel | ShardedModel:
        """Shard a model over the ranks in place, or keep it unsharded if there is one rank."""
        if self.mesh.size() == 1 and self.gathers_once:
            return UnshardedModel(policy, self.compute_dtype)
        offload = self.offload == "all"
        return ShardedModel(policy, self._shards, self.compute_dtype, gather_once=self.gathers_once, offload=offload)

    def _adapt(self, policy: PackedCausalLM) -> None:
        config = self._config
        tower = policy.tower_layers()
        layers = [layer for layer in policy.layers() if layer not in tower]
        if config.lora is not None:
            lora.add_adapters(policy.model, layers, config.lora, getattr(torch, config.param_dtype), config.seed)
        if config.fp8 != "off":
            fp8.convert(policy.model, layers, config.fp8)

    def _check(self, policy: PackedCausalLM) -> None:
        """Check a model before it is sharded, while each rank has all of it and need not wait for others."""
        if packing_check.NAME not in self._config.skip_checks:
            packing_check.check(policy, shares_prefixes=self.shares_prefixes, sequence=self.sequence)

    def _decide_sharing(self, policy: PackedCausalLM) -> bool:
        setting = self._config.share_prefixes
        if setting and policy.has_sliding_window:
            raise UserError(
                "learner.share_prefixes is true, but this model has sliding-window layers, which cannot share a "
                "prompt. Omit share_prefixes."
            )
        if setting and policy.recurrent.any:
            raise UserError(
                "learner.share_prefixes is true, but this model has recurrent layers, whose state cannot be shared "
                "between sequences. Omit share_prefixes."
            )
        can_share = not (policy.has_sliding_window or policy.recurrent.any)
        return can_share and (self._kernel != "sdpa" if setting is None else setting)

    def _decide_gathering(self, policy: PackedCausalLM) -> bool:
        config = self._config
        if self.offload == "all" and config.gather_once:
            raise UserError("learner.offload=all copies layers to the device one at a time. Omit gather_once.")
        once = config.gather_once
        # FSDP gathers and reduces a layer at each use, so ranks with different numbers of micro-batches would hang.
        in_lockstep = self.mesh.size() > 1 and policy.repeats_layers
        if once and in_lockstep:
            raise UserError(
                "learner.gather_once is true, but this model runs its layers several times in one pass, so several "
                "ranks must gather them for every micro-batch. Omit gather_once."
            )
        if once is None and self.offload != "all" and not in_lockstep:
            once = self.mesh.size() == 1 or fits_unsharded(policy, self._device, self.compute_dtype)
        if config.checkpointing == "sparse" and not once:
            raise UserError(
                "learner.checkpointing=sparse needs parameters that are gathered once per mini-batch "
                "(learner.gather_once), because it recomputes layers out of order. "
                "Set learner.checkpointing=full."
            )
        return bool(once)
