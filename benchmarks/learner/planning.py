"""Compare the balance of plans over ranks with verl's: ideal over actual time of all ranks, and milliseconds to plan.

    pip download verl==0.9.1 --no-deps -d build/verl && unzip -o 'build/verl/*.whl' -d build/verl 'verl/utils/seqlen_*'
    python -m benchmarks.learner.planning [--verl build/verl] [--seeds 40]

Lengths are lognormal around 4,096 tokens, 64 to 65,536; micro-batches have 65,536 tokens at most; 8 ranks. A sequence
takes the time of its FLOPs: those of attention at 45% of the peak, others at 60%. All plans get the same lengths:

    lockstep     agentloop; ranks wait for each other after each micro-batch
    one_barrier  agentloop; ranks wait once per mini-batch (gradients are synchronised once)
    verl         0.9.1, its own partition code in the way `_balance_batch` and `rearrange_micro_batches` call it,
                 in lockstep; micro-batches grow in number until all are within the budget
    naive        an equal number of sequences to each rank as they come, micro-batches filled in this order, in lockstep
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from agentloop.trainer.planning import CostModel, plan
from benchmarks import results_file

RANKS, BUDGET = 8, 65_536
SHAPES = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "8B": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
}
CASES = [("0.6B", 0.6, 128), ("0.6B", 1.0, 128), ("0.6B", 1.0, 512), ("0.6B", 1.4, 128), ("0.6B", 1.4, 512)]
CASES += [("8B", 1.0, 128), ("8B", 1.0, 512)]

Bins = list[list[list[int]]]
"""Indices of sequences by [rank][micro-batch]."""


def cost_model(shape: str) -> CostModel:
    config = SimpleNamespace(**SHAPES[shape], num_key_value_heads=8, head_dim=128, vocab_size=151_936)
    flops = CostModel.from_config(config)
    per_token = flops.per_token / 0.60
    return CostModel(per_token, flops.per_token_pair / 0.45, per_micro_batch=512 * per_token)


def draw(seed: int, sigma: float, count: int) -> list[int]:
    drawn = np.random.default_rng(seed).lognormal(np.log(4096), sigma, count)
    return [int(length) for length in drawn.clip(64, BUDGET)]


def efficiency(ranks: Bins, costs: Sequence[float], *, lockstep: bool) -> float:
    """Assert that the plan contains every sequence once."""
    assert sorted(index for rows in ranks for row in rows for index in row) == list(range(len(costs)))
    loads = [[sum(costs[index] for index in row) for row in rows] for rows in ranks]
    if lockstep:
        rows = max(map(len, loads))
        makespan = sum(max(rank[row] if row < len(rank) else 0.0 for rank in loads) for row in range(rows))
    else:
        makespan = max(map(sum, loads))
    return sum(costs) / len(ranks) / makespan


def load_verl(folder: Path) -> ModuleType:
    """Import only verl's partition code. Its other imports are stubs, which the functions do not use."""
    for name in ("verl", "verl.protocol", "verl.utils", "verl.utils.device"):
        sys.modules[name] = ModuleType(name)
    vars(sys.modules["verl.protocol"])["DataProto"] = None
    vars(sys.modules["verl.utils"])["tensordict_utils"] = None
    vars(sys.modules["verl.utils.device"])["get_device_name"] = lambda: "cpu"
    spec = importlib.util.spec_from_file_location("verl_seqlen", folder / "verl" / "utils" / "seqlen_balancing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plan_by_verl(verl: ModuleType, lengths: Sequence[int]) -> Bins:
    import torch

    partition = verl.get_seqlen_balanced_partitions
    work = verl.calculate_workload(torch.tensor(lengths)).tolist()
    shares = partition(work, RANKS, equal_size=True)
    count = max(-(-sum(lengths[index] for index in share) // BUDGET) for share in shares)
    while True:
        bins = [
            [[share[place] for place in row] for row in partition([work[i] for i in share], count, equal_size=False)]
            for share in shares
        ]
        if all(sum(lengths[index] for index in row) <= BUDGET for rows in bins for row in rows):
            break
        count += 1
    for number, rows in enumerate(bins):
        rows.sort(key=lambda row: (sum(work[index] for index in row), row[0]), reverse=True)
        bins[number] = rows[::2][::-1] + rows[1::2]
    return bins


def plan_naively(lengths: Sequence[int]) -> Bins:
    ranks: Bins = []
    for share in np.array_split(np.arange(len(lengths)), RANKS):
        rows: list[list[int]] = [[]]
        for index in share.tolist():
            if sum(lengths[other] for other in rows[-1]) + lengths[index] > BUDGET:
                rows.append([])
            rows[-1].append(index)
        ranks.append(rows)
    return ranks


def best_milliseconds(run: Callable[[], Any], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def measure(shape: str, sigma: float, count: int, seeds: int, verl: ModuleType | None) -> dict[str, Any]:
    cost = cost_model(shape)
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    for seed in range(seeds):
        lengths = draw(seed, sigma, count)
        costs = [cost(length) for length in lengths]
        for name, lockstep in (("lockstep", True), ("one_barrier", False)):

            def ours(lockstep: bool = lockstep, lengths: list[int] = lengths) -> Bins:
                return plan(lengths, ranks=RANKS, token_budget=BUDGET, cost=cost, lockstep=lockstep).ranks

            bins = ours()
            note(name, efficiency(bins, costs, lockstep=lockstep))
            note(f"{name}_rows", max(map(len, bins)))
            note(f"{name}_ms", best_milliseconds(ours))
        note("naive", efficiency(plan_naively(lengths), costs, lockstep=True))
        if verl is not None:
            bins = plan_by_verl(verl, lengths)
            note("verl", efficiency(bins, costs, lockstep=True))
            note("verl_rows", max(map(len, bins)))
            note("verl_ms", best_milliseconds(lambda lengths=lengths: plan_by_verl(verl, lengths), repeats=1))
    summary = {name: round(statistics.mean(values), 4) for name, values in found.items()}
    worst = {f"{name}_max": round(max(values), 2) for name, values in found.items() if name.endswith("_ms")}
    least = {f"{name}_min": round(min(found[name]), 4) for name in ("lockstep", "one_barrier")}
    if verl is not None:
        least["least_gain_over_verl"] = round(min(np.subtract(found["lockstep"], found["verl"])), 4)
    return {"model": shape, "sigma": sigma, "episodes": count, **summary, **worst, **least}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", type=Path, help="folder of the unpacked wheel; without it verl is left out")
    parser.add_argument("--seeds", type=int, default=40)
    arguments = parser.parse_args()
    verl = load_verl(arguments.verl) if arguments.verl else None
    results = []
    for shape, sigma, count in CASES:
        results.append(measure(shape, sigma, count, arguments.seeds, verl))
        print("  ".join(f"{name}={value}" for name, value in results[-1].items()))
    print(results_file.write("planning", {"ranks": RANKS, "token_budget": BUDGET, "cases": results}))


if __name__ == "__main__":
    main()
