"""The ranks of a learner: rank 0 in this process or an actor, each other rank in a Ray actor, on this node or another.

    driver (rank 0)                        RankActor 1 .. n-1
    run(function, *args)         ------->  function(objects, *args)    all call collectives of torch.distributed
    function(objects, *args)                      |
          <------------- done --------------------+

Ray's object store holds the arguments once, and all ranks of a node map the same arrays. Only rank 0 returns a result.
If a rank dies, or raises an error other than `UserError`, all ranks are ended, because none can continue.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, as_completed, wait
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.cluster import process_group, session
from agentloop.trainer.cluster.process_group import Rendezvous
from agentloop.trainer.cluster.rank_actor import ASIDE, PROBES, Objects, RankActor
from agentloop.trainer.cluster.reservation import GpuReservation

T = TypeVar("T")
_log = logging.getLogger(__name__)

PATIENCE = 900.0
"""Seconds after which ranks log their stacks; most calls take seconds."""
_SETTLE_SECONDS = 10.0
"""Seconds to wait for each rank to answer or to be reported dead, and for rank 0 to return after all have ended."""
_FORWARDED = ("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "CUBLAS_", "HF_", "AGENTLOOP_")
"""Prefixes of environment variables that ranks copy from this process."""
_CLOSED = "The learner was closed during a call. Run the same command again to resume."
_OF_THIS_NODE = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class LearnerRanks:
    """All ranks of a learner, spread equally over `nodes` Ray nodes, this node first.

    Rank 0 is in this process, or with `in_process=False` an actor like the others.
    If the `reservation` has GPUs, each rank gets one of them; otherwise rank n of a node uses GPU n of the node.
    Connects to Ray if this process is not connected: a learner on one node starts Ray, a learner on several nodes joins
    the cluster that runs on this machine. Raises `UserError` if there are too few nodes or devices.
    """

    def __init__(
        self,
        ranks: int,
        device: str,
        nodes: int = 1,
        reservation: GpuReservation | None = None,
        *,
        in_process: bool = True,
        patience: float = PATIENCE,
    ) -> None:
        self.ranks, self.device, self.nodes = ranks, device, nodes
        self._in_process = in_process
        self._per_node = ranks // nodes
        self._check(reservation)
        self._patience = patience
        self._lock = threading.Lock()
        self._beginning = threading.Lock()
        """Held while calls begin, so that `close` knows of each or the call knows that it is closed."""
        self._thread = _RankThread()
        self._objects: Objects = {}
        """Objects of rank 0, if it is in this process."""
        self._failure: str | None = None
        self._is_closed = False
        self._actors: dict[int, Any] = {}
        self._unanswered: set[Future[Any]] = set()
        """Calls of actors that have not returned."""
        self._own_reservation: GpuReservation | None = None
        self._store: TCPStore | None = None
        self._owns_ray = session.connect_learner(ranks, nodes)
        try:
            if reservation is None:
                at_least = self._per_node if device == "cuda" else 0
                reservation = self._own_reservation = GpuReservation.take(nodes, at_least=at_least)
            self._reservation = reservation
            address = reservation.nodes[0].address if nodes > 1 else process_group.THIS_HOST
            self._store = process_group.listen(ranks, address)
            self._start(Rendezvous(address, self._store.port, ranks, device))
        except BaseException:
            self.close()
            raise

    def _check(self, reservation: GpuReservation | None) -> None:
        if self._in_process and dist.is_initialized() and dist.get_world_size() > 1:
            raise UserError(
                "This process already has a learner with several ranks, and can have only one process group. Close "
                "that learner first, or pass its ranks to the new learner."
            )
        if self.device == "cuda" and reservation is None and self._per_node > torch.cuda.device_count():
            raise UserError(
                f"learner.ranks is {self.ranks} on {self.nodes} nodes, but torch sees {torch.cuda.device_count()} CUDA "
                f"devices here. Set learner.ranks={torch.cuda.device_count() * self.nodes} or less, learner.nodes, or "
                "learner.device=cpu."
            )
        if self.device == "cpu":
            warn_of_few_cores(self.ranks, self.nodes)

    def _start(self, rendezvous: Rendezvous) -> None:
        reservation = self._reservation
        shares = self.device == "cuda" and not reservation.num_gpus
        ray = session.require_ray()
        remote = ray.remote(concurrency_groups={ASIDE: 4, PROBES: 1})(RankActor)
        environment = {"env_vars": _environment(shares)}
        for rank in range(1 if self._in_process else 0, self.ranks):
            options = reservation.actor_options(rank // self._per_node)
            self._actors[rank] = remote.options(**options, runtime_env=environment).remote(
                rank, self._threads(), self._patience
            )
        visible = self._per_node if shares else 1
        self._everywhere(
            lambda: None,
            lambda rank, actor: actor.check.remote(self._node(rank), rendezvous, visible, torch.__version__),
        )

        def join() -> None:
            if self.nodes > 1:
                process_group.use_interface_of(reservation.nodes[0].address)
            process_group.join(0, rendezvous)

        def join_there(rank: int, actor: Any) -> Any:
            gpu = rank % self._per_node if shares else 0
            address = reservation.nodes[rank // self._per_node].address if self.nodes > 1 else None
            return actor.join.remote(rendezvous, gpu, address)

        self._everywhere(join, join_there)

    def _threads(self) -> int | None:
        """Return the number of CPU threads of each rank but the first; None: torch's default."""
        if "OMP_NUM_THREADS" in os.environ:
            return int(os.environ["OMP_NUM_THREADS"])
        return max((os.cpu_count() or 1) // self._per_node, 1) if self.device == "cpu" else None

    def run(self, function: Callable[..., T], *args: Any, aside: bool = False) -> T:
        """Call `function(objects, *args)` on all ranks, and return the result of rank 0 when all are done.

        With `aside` the ranks accept further calls meanwhile. Raises the error of rank 0 if it is in this process, a
        `UserError` that the ranks raise, or a `UserError` that names a rank that died or raised another error.
        """
        # Put by the first call: after `close` Ray may be gone, and would start again.
        arguments = cache(lambda: session.require_ray().put(args))

        def call(_rank: int, actor: Any) -> Any:
            if aside:
                return actor.call_aside.options(concurrency_group=ASIDE).remote(function, arguments())
            return actor.call.remote(function, arguments())

        suspicion = threading.Timer(self._patience, self._log_stacks)
        suspicion.daemon = True
        suspicion.start()
        try:
            return self._everywhere(partial(function, self._objects, *args), call, aside=aside)
        finally:
            suspicion.cancel()

    def _everywhere(self, local: Callable[[], T], call: Callable[[int, Any], Any], *, aside: bool = False) -> T:
        if self._failure is not None:
            raise UserError(self._failure)
        here: Future[T] | None = None
        with self._beginning:
            if self._is_closed:
                raise UserError(_CLOSED)
            answers: dict[Future[Any], int] = {call(rank, actor).future(): rank for rank, actor in self._actors.items()}
            self._unanswered |= answers.keys()
            if self._in_process:
                here = _in_new_thread(local) if aside else self._thread.submit(local)
        for answer in answers:
            answer.add_done_callback(self._unanswered.discard)
        if here is not None:
            answers[here] = 0
        refusals: dict[int, UserError] = {}
        for answer in as_completed(answers):
            error = _cause(answer.exception())
            if isinstance(error, UserError):
                refusals[answers[answer]] = error
            elif error is not None:
                self._fail(answers, here, answer)
        if refusals:
            raise refusals[min(refusals)]
        first: Future[T] = next(answer for answer, rank in answers.items() if rank == 0)
        return first.result()

    def _fail(self, answers: Mapping[Future[Any], int], here: Future[Any] | None, failed: Future[Any]) -> None:
        """End all ranks after one of them `failed`; raise the error that caused it."""
        error = _cause(failed.exception())
        assert error is not None
        if self._is_closed:  # Ray may be gone
            raise UserError(_CLOSED) from error
        with self._lock:
            culprit, cause = self._culprit(answers, here, failed) or (None, error)
            if culprit is not None and self._failure is None:
                self._failure = self._message(culprit, cause)
            self._end(here)
        if culprit is None and self._failure is None:
            self._failure = "The learner failed earlier. Run the same command again to resume from the last checkpoint."
            raise error
        raise UserError(self._failure) from cause

    def _culprit(
        self, answers: Mapping[Future[Any], int], here: Future[Any] | None, failed: Future[Any]
    ) -> tuple[int, BaseException] | None:
        """Return a rank that died, or else the first that raised, and its error.

        Returns None if only the rank of this process raised.
        """
        # A rank that dies breaks the collectives of the others before Ray reports its death. So ask all for an answer.
        probes = {
            actor.answer.options(concurrency_group=PROBES).remote().future(): rank
            for rank, actor in self._actors.items()
        }
        wait(probes, _SETTLE_SECONDS, FIRST_EXCEPTION)
        ranks = {**answers, **probes}
        raised = [each for each in ranks if each is not here and each.done() and each.exception() is not None]
        for each in sorted(raised, key=lambda each: (_died(each), each is failed), reverse=True):
            cause = _cause(each.exception())
            if cause is not None and not isinstance(cause, UserError):
                return ranks[each], cause
        return None

    def _message(self, rank: int, cause: BaseException) -> str:
        ray = session.require_ray()
        where = f"Learner rank {rank} of {self.ranks}"
        advice = (
            "run the same command again to resume from the last checkpoint, and if memory was short, lower "
            f"learner.token_budget or set learner.checkpointing=full (logs of ranks: {session.log_folder()})."
        )
        if not isinstance(cause, ray.exceptions.RayError):
            return f"{where} raised {type(cause).__name__}: {cause} on node {self._node(rank)}: {advice}"
        alive = {node.node_id for node in session.nodes()}
        if self._reservation.nodes[rank // self._per_node].node_id not in alive:
            return f"{where} was lost with its node {self._node(rank)}: {advice}"
        lines = str(cause).strip().splitlines() or [""]
        why = f" as it started ({lines[-1].strip()})" if "creation task" in str(cause) else ""
        return f"{where} died on node {self._node(rank)}{why}: {advice}"

    def _node(self, rank: int) -> str:
        return self._reservation.nodes[rank // self._per_node].name

    def _end(self, here: Future[Any] | None) -> None:
        """Kill all actors, and abort collectives of this process that wait for them."""
        self._kill()
        self._store = None  # closes the store, so that ranks that wait for a dead rank get an error
        if here is None:
            return
        # gloo ends a collective when a peer dies; NCCL must be aborted.
        if self.device == "cuda" and dist.is_initialized():
            dist.distributed_c10d._abort_process_group()
        wait([here], timeout=_SETTLE_SECONDS)

    def _kill(self) -> None:
        for actor in self._actors.values():
            session.require_ray().kill(actor, no_restart=True)
        self._actors = {}

    def _log_stacks(self) -> None:
        _log.warning(
            "A call on the learner's ranks has taken more than %g s and may hang. The stacks of rank 0 follow; those "
            "of the other ranks are in their logs on their nodes (%s/worker-*.err).",
            self._patience,
            session.log_folder(),
        )
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback(sys.__stderr__, all_threads=True)

    def close(self) -> None:
        """End all other ranks, the process group, and Ray if this object started it. Further calls do nothing."""
        with self._beginning:
            if self._is_closed:
                return
            self._is_closed = True
        self._kill()
        # After Ctrl-C a thread may wait for a call, which never returns if Ray is gone before it reports the end.
        wait(set(self._unanswered), _SETTLE_SECONDS)
        self._thread.close()
        self._objects.clear()
        if self._in_process:
            process_group.leave()
        if self._own_reservation is not None:
            self._own_reservation.release()
        if self._owns_ray:
            session.shutdown()


def num_nodes(config: LearnerConfig, device: str) -> int:
    """Return `learner.nodes`, or else the smallest number of nodes with enough devices for the ranks.

    Raises `UserError` if the ranks cannot be spread equally over the nodes.
    """
    here = torch.cuda.device_count() if device == "cuda" else config.ranks
    count = config.nodes or -(-config.ranks // max(here, 1))
    if config.ranks % count:
        raise UserError(
            f"learner.ranks is {config.ranks} on {count} nodes, but each node needs the same number. Set "
            f"learner.ranks to a multiple of {count}, or learner.nodes."
        )
    return count


def warn_of_few_cores(ranks: int, nodes: int) -> None:
    """Log a warning if the ranks of a node outnumber the cores that this process may use."""
    here, cores = ranks // nodes, len(os.sched_getaffinity(0))
    if here > cores:
        _log.warning(
            f"learner.ranks is {ranks} on {nodes} nodes, but this process may use only {cores} cores: the {here} "
            "ranks of each node share them, and wait for each other in every layer. Set "
            f"learner.ranks={cores * nodes} or less."
        )


def _environment(shares: bool) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name.startswith(_FORWARDED)}
    found = {name: value for name, value in found.items() if name not in _OF_THIS_NODE}
    # Ray hides all GPUs from actors that reserve none.
    return found | ({"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"} if shares else {})


class _RankThread:
    """A daemon thread that runs all calls of rank 0 in order, so that a hanging collective cannot block an exit.

    One thread, because DTensor caches the sharding of its operations per thread: with new threads each step of a 0.6B
    model took 0.3 s longer.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="learner rank 0", daemon=True).start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Call the function after all functions that were submitted earlier."""
        result: Future[T] = Future()
        self._calls.put((function, result))
        return result

    def close(self) -> None:
        """End the thread after the calls already submitted."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, result = call
            _settle(function, result)
            del call, function, result  # free tensors that they reference


def _in_new_thread(function: Callable[[], T]) -> Future[T]:
    result: Future[T] = Future()
    threading.Thread(target=_settle, args=(function, result), name="learner rank 0, aside", daemon=True).start()
    return result


def _settle(function: Callable[[], T], result: Future[T]) -> None:
    try:
        result.set_result(function())
    except BaseException as error:  # the caller gets any error
        result.set_exception(error)


def _cause(error: BaseException | None) -> BaseException | None:
    """Return the original error of a rank, without Ray's wrapper."""
    ray = session.require_ray()
    return error.cause if isinstance(error, ray.exceptions.RayTaskError) else error


def _died(answer: Future[Any]) -> bool:
    errors = session.require_ray().exceptions
    error = answer.exception()
    return isinstance(error, errors.RayError) and not isinstance(error, errors.RayTaskError)
