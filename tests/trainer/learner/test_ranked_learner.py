"""`learner.ranks`: a run whose learner is spread over processes that it starts itself."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from agentloop.config.learner import LearnerConfig
from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.cluster import process_group
from agentloop.trainer.cluster.rank_processes import RankProcesses
from agentloop.trainer.cluster.shared_arrays import pack
from agentloop.trainer.learner import ranked_learner as ranked
from agentloop.trainer.learner.protocol import Learner
from agentloop.trainer.run.learners import create, create_critic
from agentloop.trainer.run.train import train
from tests.support.tiny import random_batch as _random_batch


def _config(model: Path, **options: object) -> LearnerConfig:
    values: dict[str, object] = {"device": "cpu", "ranks": 2, "token_budget": 256, "lr": 1e-3, **options}
    return LearnerConfig(model=str(model), **values)  # type: ignore[arg-type]


def _batch(seed: int = 0) -> TrainBatch:
    batch: TrainBatch = _random_batch(7, seed=seed, lengths=(4, 60))
    return batch


def _is_same(name: str) -> bool:
    """Whether a metric says the same however many ranks there are."""
    timed = ("time/", "learner/seconds/", "learner/tokens_per_second", "learner/flops_per_second")
    return not name.startswith((*timed, "learner/balance"))


async def test_a_run_on_two_ranks_is_the_run_on_one_and_goes_on_with_its_checkpoint(sums: Path):
    async def run(name: str, steps: int, ranks: int) -> list[dict[str, float]]:
        overrides = [f"run.steps={steps}", f"learner.ranks={ranks}", "run.loggers=[]", "eval.every=0"]
        folder = await train(load_config(RunConfig, sums / "config.yaml", overrides), sums / name)
        assert (folder.model / "model.safetensors").is_file()
        assert not multiprocessing.active_children()
        return folder.read_metrics()

    whole = await run("whole", steps=4, ranks=1)
    await run("parts", steps=2, ranks=1)
    parts = await run("parts", steps=4, ranks=2)
    assert len(whole) == len(parts) == 4
    for one, two in zip(whole, parts, strict=True):
        assert set(filter(_is_same, one)) == set(filter(_is_same, two))
        for name in filter(_is_same, one):
            assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-9), name


def test_a_rank_that_dies_is_named(sums_model: Path):
    learner = create(_config(sums_model))
    assert learner.step(_batch())["updates"] == 1
    assert ranked._processes is not None
    os.kill(ranked._processes.pids[1], signal.SIGKILL)
    with pytest.raises(UserError, match=r"rank 1 of 2 was killed by signal 9 \(SIGKILL\)"):
        learner.step(_batch())
    learner.close()
    assert not multiprocessing.active_children()


def test_a_rank_that_dies_before_all_have_met_is_named(monkeypatch: pytest.MonkeyPatch):
    join = process_group.join

    def join_alone(*args: Any) -> None:
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        join(*args)

    monkeypatch.setattr(process_group, "join", join_alone)
    with pytest.raises(UserError, match=r"rank 1 of 2 was killed by signal 9 \(SIGKILL\)"):
        RankProcesses(2, "cpu")
    assert not multiprocessing.active_children()


@pytest.fixture(scope="module")
def learner(sums_model: Path) -> Iterator[Learner]:
    found = create(_config(sums_model))
    yield found
    found.close()


def test_what_every_rank_refuses_is_raised_once_and_training_goes_on(learner: Learner):
    with pytest.raises(UserError, match=r"300 tokens, more than the token_budget of 256"):
        learner.step(_random_batch(2, lengths=(300, 301)))
    assert learner.step(_batch())["updates"] == 1


async def test_ranks_publish_whole_weights_also_after_an_engine_refused_them(learner: Learner, tmp_path: Path):
    first, second = _Taker(most=2), _Taker()
    with pytest.raises(ValueError, match="full"):
        await learner.publish(first, 1)  # type: ignore[arg-type]
    await learner.publish(second, 1)  # type: ignore[arg-type]
    learner.save_hf(tmp_path / "hf")
    saved = load_file(tmp_path / "hf" / "model.safetensors")
    assert len(second.parts) == 2
    assert second.weights.keys() == saved.keys() - {"lm_head.weight"}  # tied: it is the embedding
    for name, tensor in second.weights.items():
        assert torch.equal(saved[name], tensor), name


def test_a_critic_is_trained_by_the_same_processes(learner: Learner, sums_model: Path, tmp_path: Path):
    pids = multiprocessing.active_children()
    critic = create_critic(_config(sums_model, loss="value", lr=1e-2))
    samples = [replace(sample, old_logprobs=np.zeros(sample.num_sampled, np.float32)) for sample in _batch().samples]
    before = critic.step(TrainBatch(samples))["loss"]
    critic.save(tmp_path / "critic")
    for _ in range(3):
        critic.step(TrainBatch(samples))
    assert critic.step(TrainBatch(samples))["loss"] < before
    critic.load(tmp_path / "critic")
    values = critic.logprobs(samples)
    assert [len(part) for part in values] == [sample.num_sampled for sample in samples]
    critic.close()
    critic.close()
    assert multiprocessing.active_children() == pids
    assert learner.step(_batch())["updates"] == 1


class _Taker:
    """An engine that keeps copies of what it is given, and may refuse it half way."""

    def __init__(self, most: int | None = None) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.parts: tuple[object, ...] = ()
        self._most = most

    async def update_weights(self, weights, version: int) -> None:
        self.parts = weights.share(False).parts
        for name, tensor in weights.tensors():
            if len(self.weights) == self._most:
                raise ValueError("full")
            self.weights[name] = tensor.clone()


_DRIVER = """
import sys, time
from agentloop.trainer.cluster.rank_processes import RankProcesses

if __name__ == "__main__":
    print(RankProcesses(2, "cpu").pids[1], flush=True)
    time.sleep(600)
"""


def test_ranks_end_with_a_driver_that_is_killed(tmp_path: Path):
    script = tmp_path / "driver.py"
    script.write_text(_DRIVER)
    driver = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    rank = int(driver.stdout.readline())
    driver.kill()
    driver.wait()
    while _is_running(rank):
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    """Not gone, and not a zombie that nobody asks about."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_arrays_reach_another_process_through_shared_memory_and_leave_nothing():
    batch = _batch()
    sent = pack((batch, "and a word")).share()
    assert sent.memory is not None
    assert len(sent.pickled) < sum(len(sample) for sample in batch.samples) * 13
    got, word = sent.open()
    sent.remove()
    assert not Path(sent.memory.path).exists()
    assert word == "and a word"
    for mine, theirs in zip(batch.samples, got.samples, strict=True):
        np.testing.assert_array_equal(mine.token_ids, theirs.token_ids)
        np.testing.assert_array_equal(mine.loss_mask, theirs.loss_mask)
        theirs.token_ids[0] = 5  # not an array that refuses to be written to
    assert pack(("no arrays",)).share().memory is None


_SLOW_DRIVER = """
import time
from agentloop.trainer.cluster import rank_processes

if __name__ == "__main__":
    rank_processes.PATIENCE = 0.0
    ranks = rank_processes.RankProcesses(2, "cpu")
    ranks.run(lambda: time.sleep(600), print)
"""


def test_where_a_call_takes_long_every_rank_says_what_it_does(tmp_path: Path):
    script = tmp_path / "driver.py"
    script.write_text(_SLOW_DRIVER)
    driver = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    assert driver.stderr is not None
    awaited = ["stacks of all of them follow", "in say_where", 'rank_process.py", line']
    for line in driver.stderr:
        awaited = [text for text in awaited if text not in line]
        if not awaited:
            break
    driver.kill()
    driver.wait()
    assert not awaited
