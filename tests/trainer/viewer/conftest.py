"""A run folder as `agentloop train` writes it, without training."""

from pathlib import Path

import pytest
from PIL import Image

from agentloop.recipes.tiny import task
from agentloop.rendering import renderer_for
from agentloop.trainer.run.folder import RunFolder
from agentloop.types.trajectory import SegmentKind, Trajectory

CHECKPOINT = Path(task.__file__).parent / "checkpoint"


@pytest.fixture(scope="session")
def renderer():
    return renderer_for(CHECKPOINT)


@pytest.fixture(scope="session")
def trajectory_of(renderer):
    def make(text, *, reward=1.0, image=None, asked="question", name="1-0-0", **fields):
        trajectory = Trajectory(
            trajectory_id=name, group_id="1-0", reward=reward, **{"stop_reason": "completed"} | fields
        )
        trajectory.messages = [{"role": "user", "content": asked}]
        trajectory.append(SegmentKind.PROMPT, renderer.encode(asked), images=[image, image] if image else ())
        ids = renderer.encode(text)
        trajectory.append(
            SegmentKind.SAMPLED, ids, logprobs=[-0.5 * i for i in range(len(ids))], versions=[3] * (len(ids) - 1) + [4]
        )
        trajectory.append(SegmentKind.OBSERVATION, renderer.encode("seen"))
        return trajectory

    return make


@pytest.fixture
def run_folder(tmp_path, trajectory_of):
    """Call as run_folder(name, **config): a run of one step, evaluated before."""

    def make(name, **config):
        folder = RunFolder(tmp_path / name)
        folder.make()
        folder.write_config({"model": str(CHECKPOINT), "run": {"steps": 2}} | config)
        folder.append_metrics({"step": 0, "eval/reward/mean": 0.25})
        folder.append_metrics({"step": 1, "reward/mean": 0.5})
        image = Image.new("RGB", (4, 3), "red")
        folder.write_trajectories("step_000001", [trajectory_of("dé 漢字!", image=image)])
        folder.write_trajectories("eval_000000", [trajectory_of("no", reward=0.0)] * 2)
        return folder

    return make


@pytest.fixture
def folder(run_folder):
    return run_folder("run")
