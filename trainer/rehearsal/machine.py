"""Check that this machine has the packages and the GPUs that a run needs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from agentloop.config.run import RunConfig
from agentloop.engines import ENGINES
from agentloop.errors import UserError

_LOGGERS = {"tensorboard": "train", "wandb": "wandb", "mlflow": "mlflow"}
"""Package of a logger -> the extra that installs it."""


def check_machine(config: RunConfig) -> str:
    """Return a description of the GPUs. Raises `UserError` if a package or a GPU is missing."""
    import torch

    missing = [
        f"{setting} needs {package} (pip install 'agentloop[{extra}]')"
        for setting, package, extra in _needed(config)
        if find_spec(package) is None
    ]
    if missing:
        raise UserError(f"Packages are missing: {'; '.join(missing)}. Install them, or change these settings.")
    count = torch.cuda.device_count()
    if not count and config.learner.device == "cuda":
        raise UserError(
            "learner.device is cuda, but torch finds no GPU here. Check that `nvidia-smi` lists one and that torch is "
            "built for CUDA (torch.version.cuda), or set learner.device=cpu."
        )
    if not count and ENGINES.get(config.engine.name).runs_on_gpus and torch.version.cuda is not None:
        raise UserError(
            f"engine.name is {config.engine.name}, which needs a GPU, but torch finds none here. Check `nvidia-smi`, "
            "set engine.name=hf to run on the CPU, or set placement.gpu (H200, for example) to check a run for another "
            "machine."
        )
    return f"{count} x {torch.cuda.get_device_name(0)}" if count else "none, so the learner trains on the CPU"


def _needed(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """Yield (setting, package, extra that installs it)."""
    name, options = config.engine.name, config.engine.options
    if name == "vllm" or (name == "sglang" and not {"url", "command"} & set(options)):
        yield f"engine.name={name}", name, name
    if config.learner.backend == "megatron":
        yield "learner.backend=megatron", "megatron", "megatron"
    if config.workers.kind == "ray" or config.learner.ranks > 1:
        yield "workers.kind=ray" if config.workers.kind == "ray" else "learner.ranks above 1", "ray", "ray"
    for logger in config.run.loggers:
        if logger.name in _LOGGERS:
            yield f"run.loggers={logger.name}", logger.name, _LOGGERS[logger.name]
