"""What runs in a rank process: it calls the functions that it is sent, one after the other, and says when each is done.

The process ends with the pipe to its driver, so that nothing outlives a run, however it ended.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from agentloop.errors import UserError
from agentloop.trainer.cluster.process_group import Meeting, join
from agentloop.trainer.cluster.shared_arrays import Parcel

Objects = dict[str, Any]
"""What functions keep from one call to the next, by name."""
Function = Callable[..., None]
"""Of a module: it travels as its name."""

SAY_WHERE = signal.SIGUSR1
"""Makes a rank process write the stacks of its threads to stderr."""
READY = 0
"""Number of what a process says before it joins the group; calls have higher ones."""


@dataclass(slots=True, frozen=True)
class Call:
    """`function(objects, *arguments.open())`."""

    number: int
    function: Function
    arguments: Parcel
    apart: bool
    """In a thread of its own: later calls do not wait for it."""


@dataclass(slots=True, frozen=True)
class Done:
    """A call is over."""

    number: int
    refusal: str | None = None
    """Message of the `UserError` that it raised: every rank raises it, and goes on."""
    failure: str | None = None
    """What else it raised; the process ends, so that no other rank waits for this one."""


def main(pipe: Connection, rank: int, meeting: Meeting) -> None:
    """Rank `rank` of the process group that comes together at `meeting`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal goes to the driver too, which decides
    faulthandler.register(SAY_WHERE, all_threads=True)
    calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(pipe, calls), daemon=True).start()
    # Those of rank 0 are enough; and what a bar shares with other processes would be there when this one has ended.
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["LOCAL_RANK"] = str(meeting.place_on_host(rank))
    if meeting.device == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max((os.cpu_count() or 1) // meeting.per_host, 1))
    pipe.send(Done(READY))
    join(rank, meeting)
    sending = threading.Lock()
    objects: Objects = {}
    while True:
        call = calls.get()
        if call.apart:
            threading.Thread(target=_answer, args=(call, objects, pipe, sending)).start()
        else:
            _answer(call, objects, pipe, sending)


def _read(pipe: Connection, calls: queue.SimpleQueue[Call]) -> None:
    while True:
        try:
            call: Call | None = pipe.recv()
        except (EOFError, OSError):
            call = None
        if call is None:
            os._exit(0)  # the driver closes, or is gone; the main thread may wait in a collective for ever
        calls.put(call)


def _answer(call: Call, objects: Objects, pipe: Connection, sending: threading.Lock) -> None:
    done = Done(call.number)
    try:
        call.function(objects, *call.arguments.open())
    except UserError as error:
        done = Done(call.number, refusal=str(error))
    except BaseException as error:  # the boundary of the process: the driver hears of whatever it was
        reason = "".join(traceback.format_exception_only(error)).strip()
        traceback.print_exc()
        done = Done(call.number, failure=reason)
    with sending:
        pipe.send(done)
    if done.failure is not None:
        os._exit(1)
