"""Send images to vLLM, ready for its vision tower: token ids, the tower's input, and the position of each image.

vLLM's own processor is not used: it would scale images and expand image tokens a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from agentloop.errors import EngineError
from agentloop.process.threads import DECODING
from agentloop.types.image import PlacedImage, SeenImage

if TYPE_CHECKING:
    import torch

_MAX_IMAGES = 1024
"""Number of images that vLLM allows in a prompt. The number of their tokens is the real limit."""


def start_arguments(known: Collection[str], max_pixels: int | None, *, on_cpu: bool) -> dict[str, Any]:
    """Return engine arguments for a model with a vision tower; `known` has the argument names of this vLLM."""
    arguments: dict[str, Any] = {
        # vLLM creates its processor when it starts, which needs a tokenizer.
        "skip_tokenizer_init": False,
        "limit_mm_per_prompt": {"image": _MAX_IMAGES, "video": 0},
    }
    if "mm_device_do_normalize" in known:
        arguments["mm_device_do_normalize"] = False  # agentloop normalises pixels, as for the learner
    if max_pixels is not None:
        arguments["mm_processor_kwargs"] = {"max_pixels": max_pixels}
    if on_cpu:
        arguments["skip_mm_profiling"] = True  # profiling measures GPU memory
    return arguments


class ImageSender:
    """Builds vLLM's inputs from prompts with images, and sends each image once instead of in every turn.

    The engine core keeps received pixels in host memory (`mm_processor_cache_gb`); this process records which ones.
    """

    _llm: Any
    _dtype: torch.dtype
    _cache: Any
    """vLLM's record, in this process, of the images that the engine core has; None if the core keeps none."""

    async def start(self, llm: Any) -> None:
        """Empty the caches, and make vLLM do the lookups of a first request now.

        Later, such a lookup could happen between an entry in the record and its request.
        """
        self._llm = llm
        self._dtype = llm.vllm_config.model_config.dtype
        self._cache = llm.renderer.mm_processor_cache
        await llm.reset_mm_cache()
        await llm.get_supported_tasks()

    async def prepare(self, images: Sequence[PlacedImage], salt: str) -> dict[str, Any]:
        """Return vLLM's items, by digest, for images that the engine core may lack.

        Raises `EngineError` for images that are too large.
        """
        seen = {image.digest: image for image, _ in images}
        self._check(list(seen.values()))
        needed = [image for digest, image in seen.items() if not self._has(_name(digest, salt))]
        return await DECODING.run(lambda: {image.digest: _item(image, self._dtype) for image in needed})

    def input(self, ids: list[int], images: Sequence[PlacedImage], items: dict[str, Any], salt: str) -> Any | None:
        """Return the input for vLLM, to be sent immediately; None if `items` lack an image that the cache has evicted.

        `salt` separates cached features, keys and values: entries with another salt are not reused.
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
            # Update the record as the engine core will update its cache, in the same order.
            for name in names:
                self._cache.touch_sender_cache_item(name)
            given: list[Any] = [None if item is None else (item, []) for item in sent]
            sent = [item for item, _ in self._cache.get_and_update(given, names)]
        data = MultiModalKwargsItems({"image": sent})
        return mm_input(ids, data, {"image": names}, {"image": places}, cache_salt=salt)

    def _has(self, name: str) -> bool:
        return self._cache is not None and self._cache.is_cached_item(name)

    def _check(self, images: Sequence[SeenImage]) -> None:
        """Reject images that are too large. vLLM would reject them only after recording that the core has them."""
        longest = int(self._llm.input_processor.mm_encoder_cache_size)
        for image in images:
            if image.num_tokens > longest:
                raise EngineError(
                    f"an image has {image.num_tokens} tokens, but vLLM has room for {longest}. Raise max_pixels of the "
                    "engine (in a run: rendering.max_pixels)."
                )
        size = sum(_size(image, self._dtype) for image in images)
        kept = float(self._llm.vllm_config.model_config.multimodal_config.mm_processor_cache_gb)
        if self._cache is not None and size > kept * 2**30:
            raise EngineError(
                f"the images of one prompt take {size / 2**30:.1f} GiB, but vLLM keeps {kept:g} GiB. Raise "
                "engine.options.mm_processor_cache_gb."
            )


def _name(digest: str, salt: str) -> str:
    return f"{digest}-{salt}"


def _size(image: SeenImage, dtype: torch.dtype) -> int:
    """Return the size of the tower's input in bytes, with a margin for vLLM's metadata."""
    return image.pixels.size * image.format.temporal_patch_size * dtype.itemsize + 1024


def _item(image: SeenImage, dtype: torch.dtype) -> Any:
    """Build vLLM's item in the `dtype` of the tower, which computes the same from it as from float32."""
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
