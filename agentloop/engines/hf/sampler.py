"""Batched sampling of the `hf` engine. The token of a row depends only on its logits, seed and token index."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(seeds: NDArray[np.uint64], counters: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return a number in [0, 1) for each (seed, counter): 24 bits of splitmix64 (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        x = _mix(seeds + _GOLDEN) ^ _mix((counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        return ((_mix(x + _GOLDEN) >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def sample(
    logits: torch.Tensor,
    noise: NDArray[np.float32],
    temperature: NDArray[np.float32],
    top_p: NDArray[np.float32],
    top_k: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Sample from logits [rows, vocabulary]; return ids [rows] and their log-probabilities [rows].

    The log-probability refers to the distribution that the token is drawn from: at the row's temperature, truncated by
    `top_p` and `top_k`. A row at temperature 0 takes the most likely token and its log-probability at temperature 1.
    """
    device = logits.device
    logits = logits.float()
    warm = temperature > 0
    if not np.all(warm & (temperature == 1)):
        logits = logits / torch.from_numpy(np.where(warm, temperature, 1).astype(np.float32)).to(device)[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    cut_logprobs = None
    if warm.any():
        u = torch.from_numpy(noise).to(device)[:, None]
        ids = _draw(logprobs.exp(), u)
        cut = np.flatnonzero(warm & ((top_p < 1) | (top_k > 0)))
        if len(cut):
            rows = torch.from_numpy(cut).to(device)
            ids[rows], cut_logprobs = _draw_cut(
                logprobs[rows],
                u[rows],
                torch.from_numpy(top_p[cut]).to(device)[:, None],
                torch.from_numpy(np.where(top_k[cut] > 0, top_k[cut], logits.shape[1])).to(device)[:, None],
            )
    if not warm.all():
        best = logprobs.argmax(dim=-1)
        ids = torch.where(torch.from_numpy(warm).to(device), ids, best) if warm.any() else best
    chosen = logprobs.gather(1, ids[:, None])[:, 0]
    if cut_logprobs is not None:
        chosen[rows] = cut_logprobs
    return ids.cpu().numpy(), chosen.cpu().numpy()


def _draw(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution at `u`. Tokens of weight 0 are never drawn."""
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # u * total may round up to total, which would point past the last token.
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=weights.shape[1] - 1)


def _draw_cut(
    logprobs: torch.Tensor, u: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from the `top_k` most likely tokens, reduced to the smallest set whose probability reaches `top_p`.

    Returns ids and their log-probabilities among these tokens, both [rows].
    """
    weights, order = logprobs.exp().sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(weights.shape[1], device=weights.device)[None]
    weights = weights.masked_fill(rank >= top_k, 0.0)
    before = weights.cumsum(dim=-1) - weights
    weights = weights.masked_fill(before >= top_p * weights.sum(dim=-1, keepdim=True), 0.0)
    drawn = _draw(weights, u)[:, None]
    kept = weights.gather(1, drawn) / weights.sum(dim=-1, keepdim=True)
    return order.gather(1, drawn)[:, 0], kept.log()[:, 0]
