"""Pictures for vLLM, ready for its tower: it gets the ids as they are, the input of the tower, and where each picture
is. Its own processor, which would scale pictures and expand image tokens a second time, is never asked."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from agentloop.errors import EngineError
from agentloop.types.image import PlacedImage, SeenImage

if TYPE_CHECKING:
    import torch

_MAX_IMAGES = 1024
"""Pictures of one prompt that vLLM is told to allow; what fits is decided by their tokens."""


def start_arguments(known: Collection[str], max_pixels: int | None, *, on_cpu: bool) -> dict[str, Any]:
    """Engine arguments of a model that sees pictures; `known` are the names of those that this vLLM has."""
    arguments: dict[str, Any] = {
        # Its processor is made at the start, and wants a tokenizer.
        "skip_tokenizer_init": False,
        "limit_mm_per_prompt": {"image": _MAX_IMAGES, "video": 0},
    }
    if "mm_device_do_normalize" in known:
        arguments["mm_device_do_normalize"] = False  # pixels are normalised here, as the learner's are
    if max_pixels is not None:
        arguments["mm_processor_kwargs"] = {"max_pixels": max_pixels}
    if on_cpu:
        arguments["skip_mm_profiling"] = True  # it measures the memory of GPUs
    return arguments


class ImageSender:
    """Makes vLLM's inputs of prompts with pictures. The engine core keeps the pixels of pictures that it got, in memory
    of the host (`mm_processor_cache_gb`), and this process knows which: a picture is sent once, not every turn."""

    _llm: Any
    _dtype: torch.dtype
    _cache: Any
    """vLLM's own record of what the engine core has; None where that keeps nothing."""
    _capacity: float

    async def start(self, llm: Any) -> None:
        """Throw away what vLLM tried itself with, and have it look up what it looks up at the first request: nothing
        may come between the record and the request that it is about."""
        self._llm = llm
        self._dtype = llm.vllm_config.model_config.dtype
        self._cache = llm.renderer.mm_processor_cache
        self._capacity = float(llm.vllm_config.model_config.multimodal_config.mm_processor_cache_gb) * 2**30
        await llm.reset_mm_cache()
        await llm.get_supported_tasks()

    async def prepare(self, images: Sequence[PlacedImage], salt: str) -> dict[str, Any]:
        """By digest, vLLM's items of the pictures that the engine core may need. Raises `EngineError` for pictures that
        it cannot take."""
        seen = {image.digest: image for image, _ in images}
        self._check(list(seen.values()))
        needed = [image for digest, image in seen.items() if not self._has(_name(digest, salt))]
        return await asyncio.to_thread(lambda: {image.digest: _item(image, self._dtype) for image in needed})

    def input(self, ids: list[int], images: Sequence[PlacedImage], items: dict[str, Any], salt: str) -> Any | None:
        """vLLM's input, to be given to it at once; None where `items` lack a picture that has left the cache since.

        `salt` divides the caches of features, keys and values: what was computed under another one is not used.
        """
        from vllm.inputs import mm_input
        from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

        digests = [image.digest for image, _ in images]
        names = [_name(digest, salt) for digest in digests]
        if any(digest not in items and not self._has(name) for digest, name in zip(digests, names, strict=True)):
            return None
        places = [PlaceholderRange(offset=placed.start, length=placed.image.num_tokens) for placed in images]
        sent = [items.get(digest) for digest in digests]
        if self._cache is not None:
            # As the engine core will do it, in the same order.
            for name in names:
                self._cache.touch_sender_cache_item(name)
            given: list[Any] = [None if item is None else (item, []) for item in sent]
            sent = [item for item, _ in self._cache.get_and_update(given, names)]
        data = MultiModalKwargsItems({"image": sent})
        return mm_input(ids, data, {"image": names}, {"image": places}, cache_salt=salt)

    def _has(self, name: str) -> bool:
        return self._cache is not None and self._cache.is_cached_item(name)

    def _check(self, images: Sequence[SeenImage]) -> None:
        """vLLM would find it out when the record says already that the engine core has them."""
        longest = int(self._llm.input_processor.mm_encoder_cache_size)
        for image in images:
            if image.num_tokens > longest:
                raise EngineError(
                    f"a picture of {image.num_tokens} tokens, and vLLM has made room for {longest}. Raise max_pixels "
                    "of the engine (in a run: rendering.max_pixels)."
                )
        size = sum(_size(image, self._dtype) for image in images)
        if self._cache is not None and size > self._capacity:
            raise EngineError(
                f"pictures of {size / 2**30:.1f} GiB in one prompt; vLLM keeps {self._capacity / 2**30:g}. Raise "
                "engine.options.mm_processor_cache_gb."
            )


def _name(digest: str, salt: str) -> str:
    return f"{digest}-{salt}"


def _size(image: SeenImage, dtype: torch.dtype) -> int:
    """Bytes of the tower's input, and some for what vLLM says of it."""
    return image.pixels.size * image.format.temporal_patch_size * dtype.itemsize + 1024


def _item(image: SeenImage, dtype: torch.dtype) -> Any:
    """In the `dtype` of the tower, which makes of the pixels the same as of float32."""
    import torch
    from transformers import BatchFeature
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems

    from agentloop.vision.tower import patches, upload

    (pixels,) = upload([image], "cpu")
    grid = torch.tensor([[1, *image.grid]])
    values = BatchFeature({"pixel_values": patches(pixels, image.format).to(dtype), "image_grid_thw": grid})
    fields = {
        "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", torch.tensor([image.num_patches])),
        "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
    }
    (item,) = MultiModalKwargsItems.from_hf_inputs(values, fields)["image"]
    return item
