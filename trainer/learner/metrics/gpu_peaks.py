"""Peak rates of accelerators, for how much of them is used."""

from __future__ import annotations

import torch

_DENSE_BFLOAT16 = {
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "RTX 6000 Ada": 364e12,
    "RTX 4090": 165e12,
    "L4": 121e12,
    "A10": 125e12,
}
"""FLOP/s of matrix products without sparsity, from the data sheets; the first name that occurs in the device's counts,
so that longer names come before those they contain."""


def peak_flops(device: torch.device) -> float | None:
    """FLOP/s in bfloat16, None for a device that is not known."""
    return peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def peak_of(name: str) -> float | None:
    """By the name that the driver gives the device."""
    return next((peak for known, peak in _DENSE_BFLOAT16.items() if known in name), None)
