"""Data sheets of GPUs, for estimates and for the learner's utilisation metric."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from agentloop.errors import UserError, nearest


@dataclass(slots=True, frozen=True, kw_only=True)
class Gpu:
    """Data of one GPU. Rates are per second; links are per GPU and direction, as achieved by collectives."""

    name: str
    memory: float
    """Bytes that programs can use."""
    flops: float
    """Dense bfloat16 FLOPs."""
    bandwidth: float
    """Bytes to and from its memory."""
    link: float
    """Bytes to the other GPUs of its node."""
    network: float = 45e9
    """Bytes to other nodes, for one 400 Gbit/s card per GPU."""


_GIB = 2**30
KNOWN = {
    gpu.name: gpu
    for gpu in (
        Gpu(name="B200", memory=178 * _GIB, flops=2250e12, bandwidth=8e12, link=740e9),
        Gpu(name="GH200", memory=94 * _GIB, flops=989e12, bandwidth=4.0e12, link=370e9),
        Gpu(name="H200", memory=139 * _GIB, flops=989e12, bandwidth=4.8e12, link=370e9),
        Gpu(name="H100-PCIe", memory=79 * _GIB, flops=756e12, bandwidth=2.0e12, link=45e9),
        Gpu(name="H100-NVL", memory=93 * _GIB, flops=835e12, bandwidth=3.9e12, link=45e9),
        Gpu(name="H100", memory=79 * _GIB, flops=989e12, bandwidth=3.35e12, link=370e9),
        Gpu(name="H800", memory=79 * _GIB, flops=989e12, bandwidth=3.35e12, link=165e9),
        Gpu(name="H20", memory=95 * _GIB, flops=148e12, bandwidth=4.0e12, link=370e9),
        Gpu(name="A100-80GB", memory=79 * _GIB, flops=312e12, bandwidth=2.0e12, link=230e9),
        Gpu(name="A100-40GB", memory=39 * _GIB, flops=312e12, bandwidth=1.55e12, link=230e9),
        Gpu(name="A800", memory=79 * _GIB, flops=312e12, bandwidth=2.0e12, link=165e9),
        Gpu(name="L40S", memory=44 * _GIB, flops=362e12, bandwidth=0.86e12, link=25e9),
        Gpu(name="RTX-6000-Ada", memory=47 * _GIB, flops=364e12, bandwidth=0.96e12, link=25e9),
        Gpu(name="RTX-4090", memory=23.5 * _GIB, flops=165e12, bandwidth=1.0e12, link=20e9),
        Gpu(name="L4", memory=22 * _GIB, flops=121e12, bandwidth=0.3e12, link=25e9),
        Gpu(name="A10", memory=22 * _GIB, flops=125e12, bandwidth=0.6e12, link=25e9),
    )
}
"""Name -> GPU. H100 comes after its variants, because `find_device` takes the first match."""


def find(name: str) -> Gpu:
    """Return a GPU by its name, or by 'name:GiB' with another size of memory. Raises `UserError`."""
    base, _, size = name.partition(":")
    known = {key.lower(): gpu for key, gpu in KNOWN.items()}
    gpu = known.get(base.lower())
    if gpu is None or (size and not (size.replace(".", "", 1).isdecimal() and float(size) > 0)):
        raise UserError(
            f"Unknown GPU {name!r}.{nearest(base, KNOWN)} Known: {', '.join(KNOWN)}. Add a memory size in GiB as in "
            "H200:100."
        )
    return replace(gpu, memory=float(size) * _GIB) if size else gpu


def find_device(device: str) -> Gpu | None:
    """Return the GPU whose words all occur in the device name of the driver; None if it is unknown."""
    words = set(re.findall(r"\w+", device.lower()))
    return next((gpu for gpu in KNOWN.values() if words.issuperset(gpu.name.lower().split("-"))), None)
