"""What estimates need to know of accelerators, from their data sheets."""

from __future__ import annotations

from dataclasses import dataclass

from agentloop.errors import UserError, nearest


@dataclass(slots=True, frozen=True, kw_only=True)
class Gpu:
    """Rates are per second; links are of one GPU, in one direction, as collectives reach them."""

    name: str
    memory: float
    """Bytes that programs can have."""
    flops: float
    """Dense bfloat16."""
    bandwidth: float
    """Bytes to and from its memory."""
    link: float
    """Bytes to the GPUs of its node."""
    network: float = 45e9
    """Bytes to other nodes: one 400 Gbit/s card a GPU."""


_GIB = 2**30
KNOWN = {
    gpu.name: gpu
    for gpu in (
        Gpu(name="H200", memory=139 * _GIB, flops=989e12, bandwidth=4.8e12, link=370e9),
        Gpu(name="H100", memory=79 * _GIB, flops=989e12, bandwidth=3.35e12, link=370e9),
        Gpu(name="B200", memory=178 * _GIB, flops=2250e12, bandwidth=8e12, link=740e9),
        Gpu(name="A100-80GB", memory=79 * _GIB, flops=312e12, bandwidth=2.0e12, link=230e9),
        Gpu(name="A100-40GB", memory=39 * _GIB, flops=312e12, bandwidth=1.55e12, link=230e9),
        Gpu(name="L40S", memory=44 * _GIB, flops=362e12, bandwidth=0.86e12, link=25e9),
        Gpu(name="RTX-4090", memory=23.5 * _GIB, flops=165e12, bandwidth=1.0e12, link=20e9),
    )
}


def find(name: str) -> Gpu:
    """By name, or 'name:GiB' for another size of memory. Raises `UserError`."""
    base, _, size = name.partition(":")
    known = {key.lower(): gpu for key, gpu in KNOWN.items()}
    gpu = known.get(base.lower())
    if gpu is None or (size and not size.replace(".", "", 1).isdigit()):
        raise UserError(
            f"There is no GPU {name!r}.{nearest(base, KNOWN)} Known: {', '.join(KNOWN)}; H200:100 is one with 100 GiB."
        )
    return Gpu(
        name=gpu.name,
        memory=float(size) * _GIB if size else gpu.memory,
        flops=gpu.flops,
        bandwidth=gpu.bandwidth,
        link=gpu.link,
        network=gpu.network,
    )
