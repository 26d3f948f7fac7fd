"""Compile the variants of a kernel of flash-linear-attention at the same time.

Its kernels choose among up to 48 variants when they first run. Triton compiles these one after the other, which takes
minutes in a model's first step. Later processes use Triton's cache on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

_MAX_THREADS = 16


def compile_variants_in_parallel() -> None:
    """Compile the variants of all kernels of flash-linear-attention in parallel. A second call has no effect.

    The autotuner discards a variant that does not compile. Raises `ImportError` without that package.
    """
    from fla.ops.utils.cache import CachedAutotuner

    if not hasattr(CachedAutotuner.prune_configs, "__wrapped__"):
        CachedAutotuner.prune_configs = _compiling(CachedAutotuner.prune_configs)


def _compiling(prune: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return a function that compiles the variants to try, which an autotuner asks for before it runs them."""
    from triton import AsyncCompileMode

    @wraps(prune)
    def variants(tuner: Any, kwargs: dict[str, Any]) -> list[Any]:
        chosen = prune(tuner, kwargs)
        options = {name: value for name, value in kwargs.items() if name != "warmup"}
        with (
            ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool,
            AsyncCompileMode(pool, ignore_errors=True),
        ):
            for variant in chosen:
                tuner.fn.warmup(*tuner.nargs.values(), **options, **variant.all_kwargs())
        return chosen

    return variants
