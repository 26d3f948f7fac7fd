"""`train`: sets up a run from its config, and runs all its steps."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from agentloop.config.resolved import Facts, ResolvedConfig, resolve
from agentloop.config.run import RunConfig
from agentloop.episodes.setup import RolloutSetup
from agentloop.trainer.batch.distillation import TeacherEndpoint
from agentloop.trainer.cluster.session import require_ray
from agentloop.trainer.run.checks import check_trainable, check_warmup
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.model_folder import check_second_models, find_model, local_model, teacher_folder
from agentloop.trainer.run.run import Run
from agentloop.trainer.run.starting import start
from agentloop.trainer.run.steps import open_training
from agentloop.trainer.run.workers import has_gpus, make_workers
from agentloop.trainer.schedule.observers import Observer
from agentloop.trainer.sizing.place import check_devices, lines, place


async def train(config: RunConfig, folder: Path, observer: Observer | None = None) -> RunFolder:
    """Start the run in `folder`, or resume it from its last checkpoint, and run all its steps.

    The trained model is then in the folder's `model/`. Raises `UserError` for problems that the user can fix; a later
    call resumes from the last checkpoint.
    """
    resolved, setup = resolve_run(config, folder)
    distillation, teacher = resolved.algorithm.distillation, None
    if distillation is not None and distillation.is_served:
        teacher = TeacherEndpoint(distillation.teacher, distillation.served_name)
        teacher.start()
    async with open_training(setup.config, folder, observer or Observer()) as opened:
        workers = make_workers(resolved, setup, folder)
        try:
            with closing(await start(resolved, workers, folder, opened.timer)) as learner:
                run = Run(
                    setup,
                    workers,
                    learner,
                    opened.folder,
                    timer=opened.timer,
                    loggers=opened.loggers,
                    teacher=teacher,
                )
                await run.complete(opened.checkpoint)
        finally:
            await workers.close()
    return opened.folder


def resolve_run(config: RunConfig, folder: Path) -> tuple[ResolvedConfig, RolloutSetup]:
    """Return the resolved config of a run in `folder`, and its data and tools.

    This is the only way from a user's config to the config that all other code gets. The config `given` in the result
    resolves to the same result. Raises `UserError` if the run cannot work.
    """
    config, _ = placed(config)
    check_trainable(config)
    if config.learner.ranks > 1 or not config.learner.in_process:
        require_ray()  # the learner may start long after the engine
    model = local_model(config)
    check_second_models(config, model)
    setup = RolloutSetup.load(config, model)
    facts = Facts(
        model=model,
        teacher=teacher_folder(config, model),
        folder=folder,
        num_tasks=len(setup.train),
        has_gpus=has_gpus(),
    )
    resolved = resolve(config, facts)
    check_warmup(resolved.given)
    return resolved, replace(setup, config=resolved.given)


def placed(config: RunConfig, *, dry_run: bool = False) -> tuple[RunConfig, dict[str, str]]:
    """Derive settings from `placement.n_gpus`, and describe them. Only a dry run may use GPUs that are not present."""
    if config.placement.n_gpus is None:
        return config, {}
    if not dry_run:
        check_devices(config)
        local_model(config)
    placed_config, placement = place(config, find_model(config).hf_config)
    return placed_config, lines(placement) if placement is not None else {}
