"""Trajectories of text and images, sampled by the hf engine: some share a prompt with an image, one has none."""

import asyncio
from pathlib import Path

import torch

from agentloop.config.learner import LearnerConfig
from agentloop.engines.base import SamplingParams
from agentloop.engines.hf.engine import HfEngine
from agentloop.registry.named_objects import load_object
from agentloop.rendering import renderer_for
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.types.trajectory import SegmentKind, Trajectory

_MODELS = Path(__file__).parents[1] / "agentloop" / "vision" / "models.py"
picture = load_object(f"{_MODELS}:picture", "function")


def image_samples(folder: Path) -> list[Sample]:
    """Return six trajectories in two groups; the first group shares an image, the last trajectory is text only."""
    return asyncio.run(_play(folder))


async def _play(folder: Path) -> list[Sample]:
    engine = HfEngine(folder, device="cpu", max_model_len=600, seed=0)
    await engine.start()
    first = [
        _episode(engine, folder, f"a{i}", "a", [picture(100, 60, 1)], [picture(60 + 20 * i, 80, i)]) for i in range(3)
    ]
    second = [_episode(engine, folder, f"b{i}", "b", [picture(90, 90, 10 + i)] * (2 - i), []) for i in range(3)]
    trajectories = await asyncio.gather(*first, *second)
    await engine.close()
    return [Sample.from_trajectory(one, advantage=number - 2.2) for number, one in enumerate(trajectories)]


async def _episode(engine, folder, name, group, prompt, answer):
    renderer = renderer_for(folder)
    trajectory = Trajectory(trajectory_id=name, group_id=group)
    parts = [{"type": "text", "text": "What is it?"}, *_parts(prompt)]
    _show(
        trajectory, renderer, renderer.render_prompt([{"role": "user", "content": parts}]), prompt, SegmentKind.PROMPT
    )
    await _sample(engine, trajectory)
    sampled = trajectory.ids[trajectory.segments[-1].start :]
    continuation = renderer.render_continuation(
        sampled, [{"role": "tool", "content": [*_parts(answer), *_text("So?")]}]
    )
    trajectory.append(SegmentKind.TEMPLATE, continuation.closing)
    _show(trajectory, renderer, continuation.observation, answer, SegmentKind.OBSERVATION)
    await _sample(engine, trajectory)
    return trajectory


def _parts(pictures):
    return [{"type": "image", "image": one} for one in pictures]


def _text(text):
    return [{"type": "text", "text": text}]


def _show(trajectory, renderer, ids, pictures, kind):
    seen = [renderer.vision.see(one) for one in pictures]
    trajectory.append(kind, ids, images=renderer.vision.place(ids, seen, len(trajectory)))


async def _sample(engine, trajectory):
    params = SamplingParams(max_tokens=10, seed=sum(trajectory.trajectory_id.encode()))
    turn = await engine.generate(
        trajectory.ids, params, trajectory_id=trajectory.trajectory_id, images=trajectory.images
    )
    trajectory.append(SegmentKind.SAMPLED, turn.ids, logprobs=turn.logprobs, versions=turn.versions)


def gradients(learner: FsdpLearner, samples: list[Sample]) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss and gradients of one update, without applying it."""
    found = {}

    def keep() -> None:
        for name, parameter in learner.policy.model.named_parameters():
            if parameter.grad is not None:
                found[name] = parameter.grad.clone()

    learner.optimizer.step = keep
    return learner.step(TrainBatch(samples))["loss"], found


def learner_of(model: Path, **options) -> FsdpLearner:
    return FsdpLearner(LearnerConfig(model=str(model), device="cpu", grad_clip=None, **options))
