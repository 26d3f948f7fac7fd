"""Run a script on several ranks. The processes are forked from one that has imported torch and transformers; those of
GPUs are started afresh, because one of these imports starts CUDA, and CUDA does not survive a fork.

This is for tests of what runs on a rank, which need no Ray: four such ranks start in a second, while the actors of
`LearnerRanks` import torch each. tests/trainer/learner/test_ranked_learner.py tests a learner on actors.
"""

import multiprocessing
import os
import runpy
import sys
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from agentloop.trainer.cluster import process_group
from agentloop.trainer.cluster.process_group import Rendezvous

_IMPORTED = [
    "agentloop.trainer.learner.fsdp.learner",
    "agentloop.trainer.learner.megatron.learner",
    "transformers.models.qwen3.modeling_qwen3",
]


def run_on_ranks(
    ranks: int, script: Path, *arguments: object, log: Path, timeout: float = 300.0, device: str = "cpu"
) -> None:
    """Run `python script arguments...` in one process for each rank, all of which have joined a process group. Their
    output is in `log`. Raises `AssertionError` with the end of it if a rank fails, and ends the others."""
    processes = multiprocessing.get_context("forkserver" if device == "cpu" else "spawn")
    processes.set_forkserver_preload(_IMPORTED)
    store = process_group.listen(ranks)
    rendezvous = Rendezvous(process_group.THIS_HOST, store.port, ranks, device)
    started = []
    for rank in range(ranks):
        task: dict[str, Any] = {"SCRIPT": script, "ARGUMENTS": [str(argument) for argument in arguments], "LOG": log}
        task |= {"RANK": rank, "RENDEZVOUS": rendezvous}
        process = processes.Process(target=runpy.run_path, args=(__file__, task, "__rank__"), daemon=True)
        process.start()
        started.append(process)
    try:
        running = {process.sentinel: process for process in started}
        while running:
            ended = wait(list(running), timeout=timeout)
            assert ended, f"the ranks took longer than {timeout:g} s: {_end_of(log)}"
            for sentinel in ended:
                process = running.pop(sentinel)  # type: ignore[index]
                process.join()  # the sentinel may come before the status
                assert process.exitcode == 0, f"a rank ended with status {process.exitcode}: {_end_of(log)}"
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
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    os.environ["AGENTLOOP_TEST_DEVICE"] = task["RENDEZVOUS"].device
    process_group.join(task["RANK"], task["RENDEZVOUS"], gpu=task["RANK"])
    sys.argv = [str(task["SCRIPT"]), *task["ARGUMENTS"]]
    sys.path.insert(0, str(task["SCRIPT"].parent))
    runpy.run_path(str(task["SCRIPT"]), run_name="__main__")


if __name__ == "__rank__":
    _be_a_rank(globals())
