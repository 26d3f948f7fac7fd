"""A script on several ranks, in the environment that torchrun gives them. The processes are forked from one that has
imported torch and transformers, which takes each rank of torchrun seconds."""

import multiprocessing
import os
import runpy
import sys
import uuid
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch.distributed as dist

_IMPORTED = ["agentloop.trainer.learner.fsdp.learner", "transformers.models.qwen3.modeling_qwen3"]


def run_on_ranks(ranks: int, script: Path, *arguments: object, log: Path, timeout: float = 300.0) -> None:
    """`python script arguments...` on each rank, as `torchrun --standalone` has it; what they print is in `log`.
    Raises `AssertionError` with the end of it where a rank fails; the others are ended then."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(_IMPORTED)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout))
    everywhere = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    started = []
    for rank in range(ranks):
        task = {"SCRIPT": script, "ARGUMENTS": [str(argument) for argument in arguments], "LOG": log}
        task["ENVIRONMENT"] = {**everywhere, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = processes.Process(target=runpy.run_path, args=(__file__, task, "__rank__"), daemon=True)
        process.start()
        started.append(process)
    try:
        running = {process.sentinel: process for process in started}
        while running:
            ended = wait(list(running), timeout=timeout)
            assert ended, f"the ranks took longer than {timeout:g} s: {_end_of(log)}"
            for sentinel in ended:
                code = running.pop(sentinel).exitcode  # type: ignore[index]
                assert code == 0, f"a rank ended with status {code}: {_end_of(log)}"
    finally:
        for process in started:
            process.kill()
            process.join()


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:] if log.exists() else "they said nothing"


def _be_a_rank(task: dict[str, Any]) -> None:
    log = os.open(task["LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(task["ENVIRONMENT"])
    import torch

    torch.set_num_threads(1)
    sys.argv = [str(task["SCRIPT"]), *task["ARGUMENTS"]]
    sys.path.insert(0, str(task["SCRIPT"].parent))
    runpy.run_path(str(task["SCRIPT"]), run_name="__main__")


if __name__ == "__rank__":
    _be_a_rank(globals())
