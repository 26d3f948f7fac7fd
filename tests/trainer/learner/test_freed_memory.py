import torch

from agentloop.trainer.learner.freed_memory import return_freed_memory


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_freed_tensors_leave_the_process():
    tensors = [torch.ones(25_000) for _ in range(4_000)]  # 100 kB each: the heap has them, not a mapping of their own
    del tensors[::2]
    before = _resident_bytes()
    return_freed_memory()
    assert before - _resident_bytes() > 150e6  # half of 400 MB
