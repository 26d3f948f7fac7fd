"""Ray itself: connecting to it, and whether what it has is enough."""

from __future__ import annotations

import importlib
import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentloop.config.workers import WorkersConfig
from agentloop.errors import UserError

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray gives its processes the niceness 15: an engine would starve beside anything else on the machine.
    "RAY_worker_niceness": "0",
}
_OF_OUR_HEAD = {
    # Ray's head runs beside the run: where it says nothing for so many seconds, it is gone, and the run ends with it.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
}
_CONNECT_SECONDS = 5.0
WORKERS_A_CORE = 4
"""Of this machine, where Ray is started here."""


@dataclass(slots=True, frozen=True)
class Node:
    """A machine of the cluster, with what Ray may give away of it."""

    name: str
    cpus: float
    gpus: float
    address: str = ""
    node_id: str = ""


def require_ray() -> Any:
    """Return the module `ray`. Raises `UserError` if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UserError(
            f"workers.kind=ray and learner.ranks above 1 need Ray, which cannot be imported ({error}). Install it on "
            "every node: pip install 'agentloop[ray]'. Or set workers.kind=local and learner.ranks=1."
        ) from error


def connect(config: WorkersConfig, gpus: float, reserved: int = 0, on_nodes: int = 1) -> bool:
    """Connect this process to Ray, for workers of `gpus` GPUs each beside `reserved` GPUs of this node, and of further
    ones where the learner is on more; whether Ray was started for that.

    Raises `UserError` where the cluster does not answer or cannot hold the workers.
    """
    ray = require_ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        for name, value in (_ENVIRONMENT | (_OF_OUR_HEAD if config.address is None else {})).items():
            os.environ.setdefault(name, value)
        options = {"log_to_driver": config.show_logs, "logging_level": "ERROR"}
        if config.address is None:
            check_cores(config, os.cpu_count() or 1)
            cpus = max(os.cpu_count() or 1, math.ceil(config.count * config.cpus))
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, **options)
        else:
            _join(ray, config.address, options)
    try:
        check_workers_fit(config, gpus, reserved, on_nodes)
    except UserError:
        if is_ours:
            ray.shutdown()
        raise
    return is_ours


def connect_learner(ranks: int, on_nodes: int) -> bool:
    """Connect this process to Ray for a learner, and return whether it was not connected before.

    A learner on one node starts Ray here; one on several nodes joins the cluster that runs here. Raises `UserError` if
    none does.
    """
    ray = require_ray()
    if ray.is_initialized():
        return False
    options = {"log_to_driver": False, "logging_level": "ERROR"}
    for name, value in (_ENVIRONMENT | (_OF_OUR_HEAD if on_nodes == 1 else {})).items():
        os.environ.setdefault(name, value)
    if on_nodes == 1:
        ray.init(address="local", include_dashboard=False, **options)
        return True
    try:
        _join(ray, "auto", options)
    except UserError as error:
        raise UserError(
            f"The learner has {ranks} ranks, {ranks // on_nodes} on each node, and needs {on_nodes} nodes of a Ray "
            f"cluster. {error}"
        ) from error
    return True


def log_folder() -> str:
    """Return the folder that Ray writes the logs of its processes to; the path is the same on all nodes."""
    return f"{require_ray().worker._global_node.get_session_dir_path()}/logs"


def nodes() -> list[Node]:
    """Those that are alive, this one first."""
    ray = require_ray()
    here = ray.get_runtime_context().get_node_id()
    return [
        Node(
            node["NodeName"],
            node["Resources"].get("CPU", 0.0),
            node["Resources"].get("GPU", 0.0),
            node["NodeManagerAddress"],
            node["NodeID"],
        )
        for node in sorted(ray.nodes(), key=lambda node: node["NodeID"] != here)
        if node["Alive"]
    ]


def of_learner(found: Sequence[Node], count: int, gpus: int) -> list[Node]:
    """Of the nodes those that have the learner, `gpus` GPUs on each: this one, and the first others that have so many.
    Raises `UserError` where there are fewer than `count`."""
    here, *others = found
    if here.gpus < gpus:
        raise UserError(
            f"The learner needs {gpus} GPUs of this node, but Ray may give away {here.gpus:g} of it. Lower "
            "placement.learner_gpus, or let Ray have all GPUs of the node (`ray start` without --num-gpus)."
        )
    fitting = sorted((node for node in others if node.gpus >= gpus), key=lambda node: (node.name, node.node_id))
    chosen = [here, *fitting][:count]
    if len(chosen) < count:
        have = "; ".join(f"{node.name} has {node.gpus:g} GPUs" for node in found)
        raise UserError(
            f"The learner needs {count} nodes with {gpus} GPUs each, but there are {len(chosen)}: {have}. Add nodes "
            "with `ray start --address=...`, or lower learner.ranks or learner.nodes."
        )
    return chosen


def check_cores(config: WorkersConfig, cores: int) -> None:
    """Raises `UserError` where this machine has far too few cores for the workers: on an own Ray they may share them,
    but each takes seconds of a core to start, and they would not answer in time."""
    asked, most = config.count * config.cpus, cores * WORKERS_A_CORE
    if asked > most:
        count, cpus = int(most / config.cpus), math.floor(most / config.count * 100) / 100
        raise UserError(
            f"workers.count is {config.count}, with workers.cpus={config.cpus:g} each: {asked:g} cores, and this "
            f"machine has {cores}. At most {WORKERS_A_CORE} workers share a core. Set workers.count={count} or less, "
            f"workers.cpus={cpus:g}, or workers.address of a cluster."
        )


def check_workers_fit(config: WorkersConfig, gpus: float, reserved: int = 0, on_nodes: int = 1) -> None:
    """Raises `UserError` where the cluster cannot hold the workers; see `connect`."""
    check_room(_without(nodes(), reserved, on_nodes), config, gpus)


def check_room(nodes: Sequence[Node], config: WorkersConfig, gpus: float) -> None:
    """Raises `UserError` where not all workers fit, each of them whole on one node."""
    fit = sum(_fit(node, config.cpus, gpus) for node in nodes)
    if fit >= config.count:
        return
    need = f"{config.cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
    have = "; ".join(f"{node.name} has {node.cpus:g} CPUs and {node.gpus:g} GPUs" for node in nodes)
    raise UserError(
        f"workers.count is {config.count} and each worker needs {need} of one node, {config.count * config.cpus:g} "
        f"CPUs and {config.count * gpus:g} GPUs in all, but there is room for {fit}: {have}. "
        + (f"Set workers.count={fit}, lower" if fit else "Lower")
        + " workers.cpus, workers.gpus or the tensor_parallel_size of engine.options, or add nodes with `ray start`."
    )


def _without(found: Sequence[Node], reserved: int, on_nodes: int) -> list[Node]:
    """What is left for workers when the learner has `reserved` GPUs of each of its nodes."""
    if not reserved:
        return list(found)
    taken = {node.node_id for node in of_learner(found, on_nodes, reserved)}
    return [replace(node, gpus=node.gpus - reserved) if node.node_id in taken else node for node in found]


def _fit(node: Node, cpus: float, gpus: float) -> int:
    by_cpu = _times(node.cpus, cpus)
    if not gpus:
        return by_cpu
    # A part is of one GPU: two thirds do not fit twice into two.
    return min(by_cpu, int(node.gpus) * _times(1, gpus) if gpus < 1 else _times(node.gpus, gpus))


def _times(whole: float, part: float) -> int:
    """Ray counts in ten thousandths."""
    return round(whole * 10_000) // max(round(part * 10_000), 1)


def _join(ray: Any, address: str, options: dict[str, Any]) -> None:
    if "://" in address:
        raise UserError(
            f"workers.address is {address!r}: the run must be started on a node of the cluster. Start it there with "
            "workers.address=auto."
        )
    if address != "auto":
        _check_reachable(address)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"There is no Ray cluster to join at workers.address={address!r} ({type(error).__name__}: {reason}). Start "
            "one with `ray start --head` on its first node and `ray start --address=HEAD:6379` on this one, or leave "
            "workers.address out to have Ray started on this machine."
        ) from error


def _check_reachable(address: str) -> None:
    """Ray itself waits for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"workers.address is {address!r}; write 'host:port' of the cluster's head, or 'auto'.")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"Nothing answers at workers.address={address!r} ({error}). Is the head running (`ray start --head "
            f"--port={port}` there, `ray status` to look at it), and is the port open to this machine?"
        ) from error
