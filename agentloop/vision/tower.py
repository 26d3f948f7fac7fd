"""Encode images with the vision tower of a transformers model and insert the features into a packed row's embeddings.

Features are inserted at the positions of images in the stream, not at all image tokens, because a policy may sample an
image token itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentloop.types.image import PixelFormat, SeenImage


def upload(images: Sequence[SeenImage], device: torch.device | str) -> list[Tensor]:
    """Copy the pixels of each image to the device, uint8 [height, width, 3]."""
    return [torch.from_numpy(image.pixels).to(device, non_blocking=True) for image in images]


def patches(pixels: Tensor, pixel_format: PixelFormat) -> Tensor:
    """Split pixels, uint8 [height, width, 3], into the patches that the tower expects.

    The result is float32 [patches, 3 * temporal_patch_size * patch_size^2]. Patches of the same token are adjacent.
    """
    patch, merge, repeat = pixel_format.patch_size, pixel_format.merge_size, pixel_format.temporal_patch_size
    mean, std = (torch.tensor(values, device=pixels.device) for values in (pixel_format.mean, pixel_format.std))
    normal = (pixels.float() * pixel_format.scale - mean) / std
    height, width, channels = pixels.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    cut = normal.reshape(rows, merge, patch, columns, merge, patch, channels).permute(0, 3, 1, 4, 6, 2, 5)
    cut = cut.unsqueeze(5).expand(*cut.shape[:5], repeat, patch, patch)
    return cut.reshape(rows * columns * merge * merge, -1)


def image_features(backbone: Any, pixels: Sequence[Tensor], pixel_format: PixelFormat) -> Tensor:
    """Encode images to features [tokens of all images, 1 + deep layers, hidden].

    Index 0 of the second axis replaces the embedding of a token; Qwen3-VL adds the others to the hidden states after
    its first layers (DeepStack, arXiv 2406.04334). `backbone` has the tower as `visual`; `pixels` come from `upload`.
    """
    inputs = torch.cat([patches(one, pixel_format) for one in pixels])
    side = pixel_format.patch_size
    grids = torch.tensor([[1, one.shape[0] // side, one.shape[1] // side] for one in pixels], device=inputs.device)
    out = backbone.visual(inputs, grid_thw=grids, return_dict=True)
    return torch.stack([out.pooler_output, *(getattr(out, "deepstack_features", None) or ())], dim=1)


def embedded(backbone: Any, input_ids: Tensor, features: Tensor, index: Tensor) -> dict[str, Any]:
    """Return the keyword arguments of `backbone.language_model` for a row [1, num_tokens] with images.

    The tokens at `index` (int64) get the `features` of `image_features` instead of embeddings.
    """
    embeddings = backbone.get_input_embeddings()(input_ids)[0]
    features = features.to(embeddings.dtype)
    kwargs: dict[str, Any] = {"inputs_embeds": embeddings.index_copy(0, index, features[:, 0])[None]}
    if features.shape[1] > 1:
        mask = torch.zeros(input_ids.shape, dtype=torch.bool, device=input_ids.device)
        mask[0, index] = True
        kwargs |= {"visual_pos_masks": mask, "deepstack_visual_embeds": list(features[:, 1:].unbind(1))}
    return kwargs


def token_index(starts: Sequence[int], images: Sequence[SeenImage]) -> np.ndarray:
    """Return the positions of the tokens of images that begin at `starts`, int64 [tokens of all images]."""
    spans = [np.arange(start, start + image.num_tokens) for start, image in zip(starts, images, strict=True)]
    return np.concatenate(spans) if spans else np.zeros(0, np.int64)
