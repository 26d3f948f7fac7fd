"""Sources of new weights for `weight_sync.py`: one GPU, two learner ranks, or another process that sends them.

Run as a script, it is the other process, which reads commands from its standard input.
"""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

from agentloop.weights.broadcast import BroadcastWeights, Sender, leave
from agentloop.weights.sharded import ShardedShelf
from agentloop.weights.shelf import SharedWeights, WeightShelf

_HERE = "127.0.0.1"
_SECONDS = 120.0


class Source(Protocol):
    """Source of new weights."""

    def fill(self) -> SharedWeights:
        """Copy float32 parameters to a shelf in bfloat16, as a learner publishes them. Blocks."""
        ...


def shapes_of(folder: Path) -> dict[str, torch.Size]:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    return {name: weight.shape for name, weight in model.named_parameters()}


class OneDevice:
    """Source with all parameters and their shelf on one device."""

    def __init__(self, folder: Path, device: torch.device, *, through_host: bool = False) -> None:
        self._shelf = WeightShelf(on_host=through_host)
        self._weights = {name: torch.zeros(shape, device=device) for name, shape in shapes_of(folder).items()}

    def fill(self) -> SharedWeights:
        return self._shelf.put((name, weight.to(torch.bfloat16)) for name, weight in self._weights.items())


class _Shards:
    """Shards of a rank, and its part of the shelf."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard

        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        self._weights: dict[str, Any] = {}
        for name, shape in shapes_of(folder).items():
            rows = -(-shape[0] // mesh.size())
            mine = max(min(shape[0] - rows * dist.get_rank(), rows), 0)
            local = torch.zeros((mine, *shape[1:]), device=device)
            stride = torch.empty(shape, device="meta").stride()
            self._weights[name] = DTensor.from_local(
                local, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
            )
        self._sizes = {name: weight.numel() for name, weight in self._weights.items()}
        self._shelf = ShardedShelf()

    def fill(self) -> SharedWeights | None:
        dist.barrier()  # both ranks begin together
        return self._shelf.fill(self._weights.items(), torch.bfloat16, self._sizes)


class TwoRanks:
    """Source with shards and shelf spread over two devices; this process is the first rank."""

    def __init__(self, other: subprocess.Popen[str], folder: Path, devices: list[torch.device], updates: int) -> None:
        port = _free_port()
        self._other = other
        _begin(other, port, devices[1], updates, folder)
        _join(0, port, devices[0])
        self._shards = _Shards(folder, devices[0])

    def fill(self) -> SharedWeights:
        shared = self._shards.fill()
        assert shared is not None
        return shared

    def close(self) -> None:
        dist.barrier()
        dist.destroy_process_group()
        assert self._other.wait(_SECONDS) == 0


class Sent:
    """Source in another process with parameters and shelf on its device; it sends the shelf as from another host."""

    def __init__(self, sender: subprocess.Popen[str], folder: Path, device: torch.device, backend: str) -> None:
        self._sender = sender
        _begin(sender, device, backend, folder)
        self._shelf = WeightShelf()
        self._rendezvous: Any = None

    def fill(self) -> SharedWeights:
        """Fill the shelf, and send it to this process."""
        self._rendezvous, places = pickle.loads(bytes.fromhex(self._asked("fill")))
        self._asked("send")
        return BroadcastWeights(self._rendezvous, 1, _HERE, places).shared(self._shelf)

    def _asked(self, what: str) -> str:
        assert self._sender.stdin is not None
        assert self._sender.stdout is not None
        self._sender.stdin.write(f"{what}\n")
        self._sender.stdin.flush()
        return self._sender.stdout.readline()

    def close(self) -> None:
        leaving = threading.Thread(target=leave, args=(self._rendezvous,))  # both end at the same time
        leaving.start()
        self._sender.communicate(timeout=_SECONDS)
        leaving.join()


def helper(kind: str) -> subprocess.Popen[str]:
    """Other process of a source. It imports its modules at once, and allocates memory when it is used."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.weights.weight_sources", kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _begin(process: subprocess.Popen[str], *arguments: object) -> None:
    assert process.stdin is not None
    process.stdin.write(" ".join(map(str, arguments)) + "\n")
    process.stdin.flush()


@contextmanager
def source(
    kind: str, other: subprocess.Popen[str] | None, folder: Path, updates: int, *, through_host: bool = False
) -> Iterator[Source]:
    """Return the source `gpu0` and so on, `cpu`, `ranks` (two), or `sent`; the last two need a `helper`."""
    on_gpu = torch.cuda.is_available()
    devices = [torch.device("cuda", index) for index in range(2)] if on_gpu else [torch.device("cpu")] * 2
    found: Any
    if kind == "ranks":
        assert other is not None
        found = TwoRanks(other, folder, devices, updates)
    elif kind == "sent":
        assert other is not None
        found = Sent(other, folder, devices[1], "nccl" if on_gpu else "gloo")
    else:
        device = torch.device("cpu") if kind == "cpu" else devices[int(kind.removeprefix("gpu"))]
        found = OneDevice(folder, device, through_host=through_host)
    yield found
    if hasattr(found, "close"):
        found.close()


@dataclass(slots=True)
class _Sending:
    """Run the process that sends weights."""

    shelf: OneDevice
    sender: Sender
    shared: SharedWeights | None = None

    def fill(self) -> str:
        self.shared = self.shelf.fill()
        return pickle.dumps((self.sender.rendezvous, self.shared.places)).hex()


def _send(device: torch.device, backend: Any, folder: Path) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    sending = _Sending(OneDevice(folder, device), Sender(_HERE, 1, backend, _SECONDS))
    for line in sys.stdin:
        if line.strip() == "fill":
            print(sending.fill(), flush=True)
        else:
            print("sending", flush=True)
            assert sending.shared is not None
            sending.sender.send(sending.shared)
    sending.sender.abort()


def _be_rank(port: int, device: torch.device, updates: int, folder: Path) -> None:
    _join(1, port, device)
    shards = _Shards(folder, device)
    for _ in range(updates):
        shards.fill()
    dist.barrier()
    dist.destroy_process_group()


def _join(rank: int, port: int, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = dist.TCPStore(_HERE, port, 2, is_master=rank == 0)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=2
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((_HERE, 0))
        return int(found.getsockname()[1])


def main() -> None:
    first, *rest = sys.stdin.readline().split()
    if sys.argv[1] == "ranks":
        device, updates, folder = rest
        _be_rank(int(first), torch.device(device), int(updates), Path(folder))
    else:
        backend, folder = rest
        _send(torch.device(first), backend, Path(folder))


if __name__ == "__main__":
    main()
