"""Print as JSON what torch reports about this machine; `agentloop doctor` runs this in a process with a time limit."""

from __future__ import annotations

import json
from typing import Any

import torch

from agentloop.trainer.model.attention.choice import obstacle


def probe() -> dict[str, Any]:
    """Return the CUDA version of torch, the GPUs with their memory in bytes, and why kernels cannot run."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpus = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        gpus.append({"name": torch.cuda.get_device_name(index), "free": free, "total": total})
    kernels = {name: obstacle(name, device, torch.bfloat16) for name in ("fa2", "fa4")}
    return {"cuda": torch.version.cuda, "gpus": gpus, "kernels": kernels}


if __name__ == "__main__":
    print(json.dumps(probe()))
