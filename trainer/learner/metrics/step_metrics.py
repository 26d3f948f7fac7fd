"""Metrics of one `Learner.step`, summed on the device, so that micro-batches need not wait for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from agentloop.trainer.learner.metrics.recording import Span, named, now
from agentloop.trainer.learner.metrics.routing_metrics import RoutingMetrics
from agentloop.trainer.sizing.gpus import find_device


class StepMetrics:
    """Collects means over computed tokens, means over updates, and seconds of each phase."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._largest_difference = torch.zeros((), device=device)
        self._routing = RoutingMetrics()
        self._computed_tokens = 0
        self._flops = 0.0
        self._balances: list[float] = []
        self._updates: list[dict[str, float]] = []
        self._values: dict[str, list[float]] = {}
        self._skipped = 0
        self._seconds: dict[str, float] = {}
        self.spans: list[Span] = []
        """Phases in order."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase until the device has finished it."""
        start, at = time.perf_counter(), now()
        with named(name):
            yield
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - start
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self.spans.append(Span(name, at, seconds))

    def add_tokens(self, computed: int, values: Mapping[str, Tensor]) -> None:
        """Add the number of `computed` tokens, and values of trained tokens, [num_trained] each."""
        self._computed_tokens += computed
        for name, value in values.items():
            self._add(name, value)

    def add_work(self, flops: float) -> None:
        """Add FLOPs of this rank, without recomputed activations."""
        self._flops += flops

    def add_balance(self, balance: float) -> None:
        """Add the balance of the plan of an update, in (0, 1]."""
        self._balances.append(balance)

    def add_difference(self, difference: Tensor) -> None:
        """Add |learner - engine| of logprobs before the first update, [num_trained]."""
        self._add("logprob_diff", difference)
        if difference.numel():
            self._largest_difference = torch.maximum(self._largest_difference, difference.max())

    def add_routing(self, load: Tensor | None, layers: Sequence[int]) -> None:
        """Add the `Routing.load` of a row for these decoder layers."""
        self._routing.add(load, layers)

    def add_update(self, values: dict[str, float], *, skipped: bool) -> None:
        """Add loss, gradient norm and learning rate of an update."""
        self._updates.append(values)
        self._skipped += skipped

    def add_values(self, values: Mapping[str, float]) -> None:
        """Add values of an update that are equal on every rank; they are averaged over updates."""
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)

    def _add(self, name: str, value: Tensor) -> None:
        total = value.sum(dtype=torch.float64)
        self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts[name] = self._counts.get(name, 0) + value.numel()

    def result(self) -> dict[str, float]:
        """Return all metrics; except for seconds they are equal on every rank."""
        self._reduce()
        result = self._routing.result(self._device) | {
            name: total.item() / max(self._counts[name], 1) for name, total in self._sums.items()
        }
        if "logprob_diff" in result:
            result["logprob_diff_max"] = self._largest_difference.item()
        result |= {name: sum(values) / len(values) for name, values in self._values.items()}
        for name in ("loss", "grad_norm", "lr"):
            if self._updates:
                result[name] = sum(update[name] for update in self._updates) / len(self._updates)
        seconds = sum(self._seconds.values())
        result["updates"] = float(len(self._updates) - self._skipped)
        result["updates_skipped"] = float(self._skipped)
        result["computed_tokens"] = float(self._computed_tokens)
        result["tokens_per_second"] = self._computed_tokens / seconds if seconds > 0 else 0.0
        result["flops_per_second"] = self._flops / seconds if seconds > 0 else 0.0
        if self._balances:
            result["balance"] = sum(self._balances) / len(self._balances)
        result |= {f"seconds/{name}": value for name, value in self._seconds.items()}
        if self._device.type == "cuda":
            gpu = find_device(torch.cuda.get_device_name(self._device))
            if gpu is not None:
                result["mfu"] = result["flops_per_second"] / (gpu.flops * num_ranks())
            result["memory_peak_gib"] = torch.cuda.max_memory_allocated(self._device) / 2**30
        return result

    def _reduce(self) -> None:
        """Sum over ranks, after merging metric names, because a rank without work lacks some."""
        if num_ranks() == 1:
            return
        gathered: list[list[str] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, sorted(self._sums))
        names = sorted({name for part in gathered if part is not None for name in part})
        zero = torch.zeros((), dtype=torch.float64, device=self._device)
        totals = torch.stack(
            [self._sums.get(name, zero) for name in names] + [zero + self._computed_tokens, zero + self._flops]
        )
        counts = torch.tensor([self._counts.get(name, 0) for name in names], device=self._device)
        dist.all_reduce(totals)
        dist.all_reduce(counts)
        dist.all_reduce(self._largest_difference, op=dist.ReduceOp.MAX)
        self._sums = dict(zip(names, totals[:-2], strict=True))
        self._counts = dict(zip(names, counts.tolist(), strict=True))
        self._computed_tokens, self._flops = int(totals[-2].item()), totals[-1].item()


def num_ranks() -> int:
    """Return the number of ranks, which is 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1
