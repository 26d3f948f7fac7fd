"""Load of the experts of each layer, and disagreement between the routers of engine and learner."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


class RoutingMetrics:
    """Sums `Routing.load` over the rows of a step and the ranks."""

    def __init__(self) -> None:
        self._load: Tensor | None = None
        self._layers: Sequence[int] = ()

    def add(self, load: Tensor | None, layers: Sequence[int]) -> None:
        """Add the load of a row, [number of layers, experts + 2]; None for a model without experts."""
        if load is not None:
            self._load = load if self._load is None else self._load + load
            self._layers = layers

    def result(self, device: torch.device) -> dict[str, float]:
        """Return the metrics of all ranks; empty for models without observable routers."""
        load, layers = self._over_ranks(device)
        if load is None:
            return {}
        is_seen = load[:, :-2].sum(dim=1) > 0  # some routers cannot be observed
        load, layers = load[is_seen], [layer for layer, seen in zip(layers, is_seen.tolist(), strict=True) if seen]
        if not layers:
            return {}
        counts, replayed, changed = load[:, :-2].double(), load[:, -2].sum(), load[:, -1].sum()
        shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
        columns = {
            "max_share": shares.amax(dim=1),
            "idle": (counts == 0).double().mean(dim=1),
            "entropy": -torch.special.xlogy(shares, shares).sum(dim=1),
        }
        found: dict[str, float] = {}
        for name, values in columns.items():
            found[f"experts/{name}"] = values.mean().item()
            found |= {f"experts/{name}/{n}": v for n, v in zip(layers, values.tolist(), strict=True)}
        if replayed:
            found["experts/changed"] = (changed / replayed).item()
        return found

    def _over_ranks(self, device: torch.device) -> tuple[Tensor | None, Sequence[int]]:
        """Return the sum over ranks, some of which may have had no row."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return self._load, self._layers
        shapes: list[tuple[tuple[int, ...], Sequence[int]] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(shapes, None if self._load is None else (tuple(self._load.shape), list(self._layers)))
        found = next((shape for shape in shapes if shape is not None), None)
        if found is None:
            return None, ()
        load = torch.zeros(found[0], dtype=torch.int64, device=device) if self._load is None else self._load.clone()
        dist.all_reduce(load)
        return load, found[1]
