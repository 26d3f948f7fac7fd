"""Measure speed and accuracy of the attention kernels over a packed row, forward and backward.

    python -m benchmarks.learner.attention [--tokens 32768 --kernels fa4 fa2]

Lengths are lognormal. TFLOP/s count half of the pairs (causal) and a backward of 2.5 forwards. Accuracy is the relative
error against float32 on a shorter row. `shared` has the same sequences with a prefix that a group shares, once in the
row. Its error is against separate sequences.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentloop.trainer.model.attention.ops import packed_attention
from agentloop.trainer.model.attention.shared_prefix import SharedPrefixes
from benchmarks import results_file
from benchmarks.learner.lm_head import milliseconds

_HEADS, _KV_HEADS, _DIM = 16, 8, 128


def lengths_of(tokens: int, seed: int = 0) -> list[int]:
    """Return lognormal lengths (median 1,500, sigma 0.6) up to 4,096, cut to add up to `tokens`."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(int(np.clip(rng.lognormal(np.log(1500), 0.6), 16, 4096)))
    lengths[-1] -= sum(lengths) - tokens
    return [length for length in lengths if length > 0]


def inputs(tokens: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(tokens, heads, _DIM) for heads in (_HEADS, _KV_HEADS, _KV_HEADS)]
    return [torch.randn(shape, device="cuda").to(dtype).requires_grad_() for shape in shapes]


def attend(rows: list[Tensor], lengths: list[int], kernel: str, prefixes: SharedPrefixes | None = None) -> Tensor:
    cu = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device="cuda")
    prefix = (None,) * 4 if prefixes is None else prefixes.tensors
    longest = (0, 0) if prefixes is None else prefixes.longest
    out, _ = packed_attention(*rows, cu, max(lengths), 0, _DIM**-0.5, kernel, *prefix, *longest)
    return out


def speed(kernel: str, tokens: int) -> dict[str, float]:
    lengths = lengths_of(tokens)
    rows = inputs(tokens, torch.bfloat16)
    grad = torch.randn_like(rows[0])
    forward_flop = 2.0 * _HEADS * _DIM * sum(length**2 for length in lengths)

    def both() -> None:
        torch.autograd.grad(attend(rows, lengths, kernel), rows, grad)

    with torch.no_grad():
        forward = milliseconds(lambda: attend(rows, lengths, kernel))
    whole = milliseconds(both)
    return {
        "forward_ms": forward,
        "forward_backward_ms": whole,
        "forward_tflops": forward_flop / forward / 1e9,
        "forward_backward_tflops": 3.5 * forward_flop / whole / 1e9,
    }


def error(got: list[Tensor], want: list[Tensor]) -> float:
    return max(((g.double() - w.double()).norm() / w.double().norm()).item() for g, w in zip(got, want, strict=True))


def run(rows: list[Tensor], grad: Tensor, kernel: str, lengths: list[int], prefixes: Any = None) -> list[Tensor]:
    out = attend(rows, lengths, kernel, prefixes)
    return [out, *torch.autograd.grad(out, rows, grad)]


def accuracy(kernel: str) -> dict[str, float]:
    lengths = [700, 1, 129, 300, 513]
    rows = inputs(sum(lengths), torch.bfloat16)
    grad = torch.randn_like(rows[0])
    exact = [row.detach().float().requires_grad_() for row in rows]
    want = run(exact, grad.float(), "math", lengths)
    plain = error(run(rows, grad, kernel, lengths), want)
    # The first segment is the prefix of the next three; the last stands alone.
    prefixes = SharedPrefixes.of(lengths, [None, 0, 0, 0, None], "cuda")
    want = run(exact, grad.float(), "math", lengths, prefixes)
    return {"error": plain, "error_shared": error(run(rows, grad, kernel, lengths, prefixes), want)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--kernels", nargs="+", default=["fa4", "fa2"])
    args = parser.parse_args()
    result: dict[str, Any] = {"tokens": args.tokens, "heads": [_HEADS, _KV_HEADS], "head_dim": _DIM}
    for kernel in args.kernels:
        result[kernel] = accuracy(kernel) | speed(kernel, args.tokens)
        print(kernel, result[kernel])
    print(results_file.write("attention", result, gpu=torch.cuda.get_device_name()))


if __name__ == "__main__":
    main()
