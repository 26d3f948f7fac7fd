"""Floating-point operations of the vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, frozen=True)
class VisionFlops:
    """FLOPs of one forward pass over images, which are cut into patches that attend to each other."""

    per_patch: float
    per_pair: float
    """FLOPs per pair of patches, in all layers with attention over the whole image."""
    per_window_pair: float = 0.0
    """FLOPs per pair of patches, in all layers with attention within windows."""
    window: int = 0
    """Number of patches in a window."""

    def forward(self, image_patches: Iterable[int]) -> float:
        """Return the FLOPs for images or video frames, given by their patches before merging into tokens."""
        return sum(
            self.per_patch * patches
            + self.per_pair * patches * patches
            + self.per_window_pair * patches * min(patches, self.window)
            for patches in image_patches
        )

    @classmethod
    def from_config(cls, config: Any | None) -> VisionFlops | None:
        """Count from the `vision_config` of a transformers config; None without a tower, or for an unknown kind."""
        if config is None or not hasattr(config, "depth") or not hasattr(config, "spatial_merge_size"):
            return None
        # In Qwen2-VL embed_dim is the width of the tower, and hidden_size the width of the language model.
        hidden: int = getattr(config, "embed_dim", None) or config.hidden_size
        out: int = getattr(config, "out_hidden_size", None) or config.hidden_size
        mlp = getattr(config, "intermediate_size", None) or int(hidden * config.mlp_ratio)
        # A gated MLP has three matrices; among these towers only those with silu are gated.
        layer = 4 * hidden * hidden + (3 if config.hidden_act == "silu" else 2) * hidden * mlp
        embedding = config.in_channels * config.temporal_patch_size * config.patch_size**2 * hidden
        merged = config.spatial_merge_size**2
        mergers = 1 + len(getattr(config, "deepstack_visual_indexes", None) or ())
        merger = mergers * ((hidden * merged) ** 2 + hidden * merged * out) / merged
        side = (getattr(config, "window_size", None) or 0) // config.patch_size
        full: int = len(config.fullatt_block_indexes) if side else config.depth
        return cls(
            per_patch=2 * (embedding + config.depth * layer + merger),
            per_pair=4 * full * hidden,
            per_window_pair=4 * (config.depth - full) * hidden,
            window=side * side,
        )
