"""`fine_tune`: sets up a run on given answers from its config, and runs all its steps."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from agentloop.config.algorithm import AlgorithmConfig
from agentloop.config.fine_tuning import FineTuningConfig
from agentloop.config.learner import LearnerConfig
from agentloop.config.loading import load_config
from agentloop.config.resolved import ResolvedConfig, context_length
from agentloop.config.run import RunConfig
from agentloop.episodes.setup import RolloutSetup
from agentloop.errors import UserError
from agentloop.rendering import renderer_for
from agentloop.trainer.fine_tuning.checks import check_fine_tunable
from agentloop.trainer.fine_tuning.examples import Examples
from agentloop.trainer.fine_tuning.run import FineTuningRun, Player
from agentloop.trainer.run.checks import check_warmup
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.learners import create
from agentloop.trainer.run.model_folder import check_same_tokens, locate_model
from agentloop.trainer.run.starting import start
from agentloop.trainer.run.steps import open_training
from agentloop.trainer.run.train import resolve_run
from agentloop.trainer.run.workers import make_workers
from agentloop.trainer.schedule.observers import Observer, Part, Stage


@dataclass(slots=True, frozen=True)
class FineTuning:
    """A run on given answers with its loaded model and data."""

    config: FineTuningConfig
    """The config as the user wrote it, with the number of steps."""
    learner: LearnerConfig
    """The learner with local folders of its models."""
    train: Examples
    held_out: Examples | None
    player: tuple[ResolvedConfig, RolloutSetup] | None
    """Run whose held-out tasks are played in evaluations, and its setup; None: no episodes."""

    @classmethod
    def load(cls, config: FineTuningConfig, folder: Path) -> FineTuning:
        """Load model and data of a run in `folder`. Raises `UserError` if the run cannot work."""
        check_fine_tunable(config)
        model = locate_model(config.model)
        context = context_length(model)
        longest = config.max_tokens(context)
        if context is not None and longest > context:
            raise UserError(
                f"data.max_tokens is {longest}, but {config.model} supports {context} tokens. Set "
                f"data.max_tokens={context} or less, or omit it."
            )
        renderer = renderer_for(model, **dict(config.rendering))
        pairs = config.learner.loss == "dpo"
        train, held_out = Examples.load(config.data, renderer, max_tokens=longest, pairs=pairs)
        config = config.with_steps(len(train))
        check_warmup(config)
        learner = config.learner_of(model, folder, _reference(config, model))
        return cls(config, learner, train, held_out, _player(config, learner, folder))


def _reference(config: FineTuningConfig, model: Path) -> Path | None:
    """Return the folder of the reference model; None if the run needs none. Raises `UserError` if it is unusable."""
    given = config.learner.reference
    if given is None:
        return model if config.learner.loss == "dpo" else None
    if given == config.model:
        return model
    folder = locate_model(given, key="learner.reference")
    check_same_tokens(folder, model, "learner.reference")
    return folder


def _player(
    config: FineTuningConfig, learner: LearnerConfig, folder: Path
) -> tuple[ResolvedConfig, RolloutSetup] | None:
    """Resolve the run in `eval.rollout`, with the learner of this run instead of its own."""
    if config.eval.rollout is None or not config.eval.every:
        return None
    shared = {"model": config.model, "learner.compute_dtype": config.learner.compute_dtype}
    played = load_config(RunConfig, Path(config.eval.rollout), shared)
    resolved, setup = resolve_run(played, folder)
    if not setup.eval:
        raise UserError(f"eval.rollout is {config.eval.rollout}, which has no held-out tasks. Set data.eval in it.")
    return resolved.replace(learner=learner, algorithm=AlgorithmConfig()), setup


async def fine_tune(config: FineTuningConfig, folder: Path, observer: Observer | None = None) -> RunFolder:
    """Start the run in `folder`, or resume it from its last checkpoint, and run all its steps.

    The trained model is then in the folder's `model/`. Raises `UserError` for problems that the user can fix; a later
    call resumes from the last checkpoint.
    """
    run = FineTuning.load(config, folder)
    async with open_training(run.config, folder, observer or Observer()) as opened, AsyncExitStack() as stack:
        player = None
        if run.player is None:
            with opened.timer.stage(Stage.LOAD), opened.timer.part(Part.LEARNER):
                learner = create(run.learner, folder=folder)
        else:
            resolved, setup = run.player
            workers = make_workers(resolved, setup)
            stack.push_async_callback(workers.close)
            learner = await start(resolved, workers, folder, opened.timer)
            player = Player(setup, workers)
        stack.callback(learner.close)
        steps = FineTuningRun(
            run.config,
            run.train,
            run.held_out,
            learner,
            opened.folder,
            timer=opened.timer,
            loggers=opened.loggers,
            player=player,
        )
        await steps.complete(opened.checkpoint)
    return opened.folder
