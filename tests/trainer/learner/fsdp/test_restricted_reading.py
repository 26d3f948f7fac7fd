"""Saved states whose files name code: they are refused, and nothing runs."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.registry.named_objects import load_object
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.learner.fsdp.restricted_reading import RestrictedReader

_TINY = Path(__file__).parents[3] / "support" / "tiny.py"
_random_batch = load_object(f"{_TINY}:random_batch", "function")

READERS = [FsdpLearner.load, FsdpLearner.load_weights]


class Command:
    """Unpickling it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def learner(tiny_qwen3) -> FsdpLearner:
    return FsdpLearner(LearnerConfig(model=str(tiny_qwen3()), device="cpu"))


@pytest.mark.parametrize("read", READERS)
def test_metadata_that_would_run_code_is_refused(learner, tmp_path, read):
    learner.save(tmp_path / "state")
    (tmp_path / "state" / ".metadata").write_bytes(pickle.dumps(Command(tmp_path / "made")))
    with pytest.raises(UserError, match=r"names posix\.mkdir.*only from folders that you trust"):
        read(learner, tmp_path / "state")
    assert not (tmp_path / "made").exists()


def test_code_among_the_values_is_refused(learner, tmp_path):
    learner.save(tmp_path / "state")
    metadata = FileSystemReader(tmp_path / "state").read_metadata()
    index, place = next(
        (index, place)
        for index, place in metadata.storage_data.items()
        if isinstance(metadata.state_dict_metadata[index.fqn], BytesStorageMetadata)
    )
    torch.save(Command(tmp_path / "made"), tmp_path / "state" / "own")
    place.relative_path, place.offset, place.length = "own", 0, (tmp_path / "state" / "own").stat().st_size
    (tmp_path / "state" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(UserError, match=f"the value of {index.fqn}.*only from folders that you trust"):
        learner.load(tmp_path / "state")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps([1]), pickle.dumps(torch.load), b"cos\nsystem\n."])
@pytest.mark.parametrize("read", READERS)
def test_other_metadata_is_refused(learner, tmp_path, content, read):
    learner.save(tmp_path / "state")
    (tmp_path / "state" / ".metadata").write_bytes(content)
    with pytest.raises(UserError, match="was not saved by a learner"):
        read(learner, tmp_path / "state")


def test_a_state_is_read_as_torch_reads_it(learner, tmp_path):
    learner.step(_random_batch(6, seed=0))
    learner.save(tmp_path / "state")
    want, got = (reader(tmp_path / "state").read_metadata() for reader in (FileSystemReader, RestrictedReader))
    assert got.state_dict_metadata == want.state_dict_metadata
    assert got.storage_data == want.storage_data
    assert got.planner_data == want.planner_data
