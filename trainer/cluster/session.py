"""Connect to Ray, and check that its nodes have enough CPUs and GPUs."""

from __future__ import annotations

import faulthandler
import importlib
import logging
import math
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentloop.config.workers import WorkersConfig
from agentloop.errors import UserError

_log = logging.getLogger(__name__)
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # With Ray's default niceness of 15 other programs on the machine would starve an engine.
    "RAY_worker_niceness": "0",
}
_OF_OUR_HEAD = {
    # The head runs on this machine: if it does not respond for this many seconds, it is dead, and the run ends.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
    # Ray would start a process for each core before it knows what for; those of ranks need another environment.
    "RAY_prestart_worker_first_driver": "0",
}
_CONNECT_SECONDS = 5.0
_ATTEMPTS = 10
"""Number of attempts to remove a folder in which processes of Ray may still write their last lines."""
_ended: list[Path] = []
"""Session folders of each Ray that this process has started and ended."""
WORKERS_A_CORE = 4
"""Largest number of workers per core of this machine, if the run starts Ray."""


@dataclass(slots=True, frozen=True)
class Node:
    """A node of the cluster, with the CPUs and GPUs that Ray may assign."""

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
            "workers.kind=ray, learner.ranks above 1 and learner.in_process=false need Ray, which cannot be imported "
            f"({error}). Install it on every node: pip install 'agentloop[ray]'. Or set workers.kind=local, "
            "learner.ranks=1 and learner.in_process=true."
        ) from error


def connect(config: WorkersConfig, gpus: float, reserved: int = 0, on_nodes: int = 1) -> bool:
    """Connect this process to Ray for workers; return False if it was already connected.

    Each worker has `gpus` GPUs. The learner has `reserved` GPUs on each of its `on_nodes` nodes, this node first.
    Raises `UserError` if the cluster does not respond or lacks resources for the workers.
    """
    ray = require_ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        for name, value in (_ENVIRONMENT | (_OF_OUR_HEAD if config.address is None else {})).items():
            os.environ.setdefault(name, value)
        options = {"log_to_driver": config.show_logs, "logging_level": "ERROR"}
        if not config.show_logs:
            _log_deaths()
        if config.address is None:
            cores = os.cpu_count() or 1
            check_cores(config, cores)
            # `agentloop workers` may add as many workers as could start.
            _init(ray, address="local", num_cpus=cores * WORKERS_A_CORE, include_dashboard=False, **options)
        else:
            _join(ray, config.address, options)
    try:
        check_workers_fit(config, gpus, reserved, on_nodes)
    except UserError:
        if is_ours:
            shutdown()
        raise
    return is_ours


def connect_learner(ranks: int, on_nodes: int) -> bool:
    """Connect this process to Ray for a learner; return False if it was already connected.

    A learner on one node starts Ray; a learner on several nodes joins the cluster that runs on this machine. Raises
    `UserError` if no cluster runs.
    """
    ray = require_ray()
    if ray.is_initialized():
        return False
    options = {"log_to_driver": False, "logging_level": "ERROR"}
    _log_deaths()
    for name, value in (_ENVIRONMENT | (_OF_OUR_HEAD if on_nodes == 1 else {})).items():
        os.environ.setdefault(name, value)
    if on_nodes == 1:
        _init(ray, address="local", include_dashboard=False, **options)
        return True
    try:
        _join(ray, "auto", options)
    except UserError as error:
        raise UserError(
            f"The learner has {ranks} ranks, {ranks // on_nodes} on each node, and needs {on_nodes} nodes of a Ray "
            f"cluster. {error}"
        ) from error
    return True


def shutdown(*, keep_logs: bool = False) -> None:
    """Leave Ray, which ends if this process started it. With `keep_logs`, `removing_sessions` keeps its folder."""
    ray = require_ray()
    node = ray.worker._global_node
    if node is not None and node.is_head() and not keep_logs:
        _ended.append(Path(node.get_session_dir_path()))
    with _keeping_signals():
        ray.shutdown()


@contextmanager
def removing_sessions() -> Iterator[None]:
    """Remove the session folders of each Ray that this process starts and ends meanwhile, unless an error is raised.

    Ray itself never removes them, and each has megabytes of logs.
    """
    _ended.clear()
    yield
    while _ended:
        _remove(_ended.pop())


def _remove(session: Path) -> None:
    latest = session.parent / "session_latest"
    # Ray would not replace a link to a folder that is gone.
    if latest.is_symlink() and os.readlink(latest) == str(session):
        latest.unlink(missing_ok=True)
    for _ in range(_ATTEMPTS):
        shutil.rmtree(session, ignore_errors=True)
        if not session.exists():
            return
        time.sleep(0.1)
    _log.warning("The folder %s of Ray, which has ended, cannot be removed: remove it by hand.", session)


def log_folder() -> str:
    """Return the folder of the logs of Ray's processes; the path is the same on all nodes."""
    return f"{require_ray().worker._global_node.get_session_dir_path()}/logs"


def nodes() -> list[Node]:
    """Return the live nodes of the cluster, this node first."""
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


def this_node_is_alive() -> bool:
    """Return whether Ray still runs on this node. Without it this process can neither start nor reach an actor."""
    here = require_ray().get_runtime_context().get_node_id()
    return any(node.node_id == here for node in nodes())


def of_learner(found: Sequence[Node], count: int, gpus: int) -> list[Node]:
    """Return the `count` nodes of the learner: this node, and the first others with at least `gpus` GPUs each.

    Raises `UserError` if too few nodes have that many GPUs.
    """
    here, *others = found
    if here.gpus < gpus:
        raise UserError(
            f"The learner needs {gpus} GPUs on this node, but Ray may assign only {here.gpus:g} of them. Lower "
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
    """Raise `UserError` if this machine has far too few cores for the workers.

    If the run starts Ray, workers may share cores. But each takes seconds of CPU time to start, and too many of them
    would not respond in time.
    """
    needed, most = config.count * config.cpus, cores * WORKERS_A_CORE
    if needed > most:
        count, cpus = int(most / config.cpus), math.floor(most / config.count * 100) / 100
        raise UserError(
            f"workers.count is {config.count}, with workers.cpus={config.cpus:g} each: {needed:g} cores, but "
            f"this machine has {cores}. At most {WORKERS_A_CORE} workers may share a core. Set workers.count={count} "
            f"or less, workers.cpus={cpus:g}, or workers.address to the address of a cluster."
        )


def check_workers_fit(config: WorkersConfig, gpus: float, reserved: int = 0, on_nodes: int = 1) -> None:
    """Raise `UserError` if the cluster lacks resources for the workers; the arguments are as in `connect`."""
    check_room(_without(nodes(), reserved, on_nodes), config, gpus)


def check_room(nodes: Sequence[Node], config: WorkersConfig, gpus: float) -> None:
    """Raise `UserError` unless all workers fit on the nodes, each on one node."""
    fit = sum(_fit(node, config.cpus, gpus) for node in nodes)
    if fit >= config.count:
        return
    need = f"{config.cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
    have = "; ".join(f"{node.name} has {node.cpus:g} CPUs and {node.gpus:g} GPUs" for node in nodes)
    raise UserError(
        f"workers.count is {config.count} and each worker needs {need} on one node, {config.count * config.cpus:g} "
        f"CPUs and {config.count * gpus:g} GPUs in all, but there is room for {fit}: {have}. "
        + (f"Set workers.count={fit}, lower" if fit else "Lower")
        + " workers.cpus, workers.gpus or the tensor_parallel_size of engine.options, or add nodes with `ray start`."
    )


def _without(found: Sequence[Node], reserved: int, on_nodes: int) -> list[Node]:
    """Return the nodes without the `reserved` GPUs that the learner has on each of its nodes."""
    if not reserved:
        return list(found)
    taken = {node.node_id for node in of_learner(found, on_nodes, reserved)}
    return [replace(node, gpus=node.gpus - reserved) if node.node_id in taken else node for node in found]


def _fit(node: Node, cpus: float, gpus: float) -> int:
    by_cpu = _times(node.cpus, cpus)
    if not gpus:
        return by_cpu
    # A fraction must fit on one GPU: two workers with 0.66 fit on two GPUs, three do not.
    return min(by_cpu, int(node.gpus) * _times(1, gpus) if gpus < 1 else _times(node.gpus, gpus))


def _times(whole: float, part: float) -> int:
    """Return how many times `part` fits into `whole`, in Ray's resolution of 1/10000."""
    return round(whole * 10_000) // max(round(part * 10_000), 1)


def _log_deaths() -> None:
    """Log Ray's messages about processes that die at level DEBUG instead of printing them.

    Our own messages name the worker or rank and the fix. Ray has no setting for this.
    """

    def log(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        _log.debug("Ray: %s", " ".join(data["lines"]))

    worker: Any = importlib.import_module("ray._private.worker")
    worker.print_to_stdstream = log


def check_address(address: str) -> None:
    """Raise `UserError` for an address that cannot be joined, or does not respond. `auto` is not looked for."""
    if "://" in address:
        raise UserError(
            f"workers.address is {address!r}: start the run on a node of the cluster, with workers.address=auto."
        )
    if address != "auto":
        _check_reachable(address)


def _init(ray: Any, **options: Any) -> None:
    with _keeping_signals():
        ray.init(**options)


@contextmanager
def _keeping_signals() -> Iterator[None]:
    """Keep what this process does after signals while Ray starts or ends.

    After its start SIGTERM would end this process at once, with a stack of C++. After its end SIGTERM, SIGABRT and
    SIGSEGV would do so without a word.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # no other thread can set a handler
            signal.signal(signal.SIGTERM, handler)
        if sys.__stderr__ is not None:
            faulthandler.disable()
            faulthandler.enable(sys.__stderr__)


def _join(ray: Any, address: str, options: dict[str, Any]) -> None:
    check_address(address)
    try:
        _init(ray, address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        # Ray itself uses its token only for the address auto, and does not say that a cluster refuses this process.
        if address != "auto" and os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
            raise UserError(
                f"Ray could not join the cluster at workers.address={address!r}, although its port responds "
                f"({type(error).__name__}: {reason}). If the cluster has a token (`ray start` says so), set "
                "RAY_AUTH_MODE=token in the environment of this command, and copy ~/.ray/auth_token from its head node."
            ) from error
        raise UserError(
            f"There is no Ray cluster to join at workers.address={address!r} ({type(error).__name__}: {reason}). Start "
            "one with `ray start --head` on its first node and `ray start --address=HEAD:6379` on this one, or omit "
            "workers.address, so that the run starts Ray on this machine."
        ) from error


def _check_reachable(address: str) -> None:
    """Raise `UserError` at once if there is no response; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"workers.address is {address!r}; write 'host:port' of the cluster's head node, or 'auto'.")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"No response from workers.address={address!r} ({error}). Start the head node (`ray start --head "
            f"--port={port}` there; `ray status` shows whether it runs), and open the port to this machine."
        ) from error
