"""A disk that fills up during a run, at each place that writes."""

import resource

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.run.checkpoints import latest_checkpoint
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.train import train
from agentloop.trainer.schedule.observers import Observer, Stage

pytestmark = pytest.mark.slow


class FillsTheDisk(Observer):
    """From a stage on, no file may grow above `limit` bytes; the kernel refuses writes as on a full disk."""

    def __init__(self, step, stage, limit):
        self.when, self.limit = (step, stage), limit

    def on_stage(self, step, stage):
        if (step, stage) == self.when:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.before[1]))

    def __enter__(self):
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        return self

    def __exit__(self, *error):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.mark.parametrize(
    ("stage", "limit"),
    [(Stage.ROLLOUT, 100), (Stage.TRAIN, 100), (Stage.SAVE, 100_000), (Stage.SAVE, 2_000)],
    ids=["trajectories", "metrics", "checkpoint", "everything"],
)
async def test_a_full_disk_is_one_sentence_and_the_run_goes_on_when_there_is_room(sums, stage, limit):
    config = load_config(RunConfig, sums / "config.yaml", ["run.loggers=[]", "run.steps=4", "run.save_every=1"])
    with (
        FillsTheDisk(3, stage, limit) as observer,
        pytest.raises(UserError, match=r"^The disk at /.* is full") as error,
    ):
        await train(config, sums / "run", observer)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300
    folder = RunFolder(sums / "run")
    found = latest_checkpoint(folder.checkpoints)
    assert found is not None
    assert found[1].step in (1, 2)  # that of step 2 is written while step 3 goes on
    folder = await train(config, sums / "run")
    assert [line["step"] for line in folder.read_metrics()] == [0, 1, 2, 3, 4]
    assert (folder.model / "config.json").is_file()


async def test_before_the_first_checkpoint_none_is_promised(sums):
    config = load_config(RunConfig, sums / "config.yaml", ["run.loggers=[]", "run.steps=2"])
    with FillsTheDisk(1, Stage.TRAIN, 100) as observer, pytest.raises(UserError) as error:
        await train(config, sums / "run", observer)
    assert latest_checkpoint(RunFolder(sums / "run").checkpoints) is None
    assert str(error.value).endswith("resumes from the last checkpoint, if there is one.")


async def test_other_errors_stay_as_they_are(sums):
    class Breaks(Observer):
        def on_step(self, step, metrics):
            raise OSError("something else")

    config = load_config(RunConfig, sums / "config.yaml", ["run.loggers=[]"])
    with pytest.raises(OSError, match="something else"):
        await train(config, sums / "run", Breaks())
