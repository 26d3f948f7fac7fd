"""The Megatron backend on two GPUs: NCCL, and the layouts that two ranks can have."""

from pathlib import Path
from typing import Any

import pytest
import torch

from agentloop.registry.named_objects import load_object
from tests.support.ranks import run_on_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

_TESTS = Path(__file__).parents[1] / "trainer" / "learner" / "megatron"
_SCRIPT = _TESTS / "on_ranks.py"
_CASES = load_object(f"{_SCRIPT}:ON_TWO", "dictionary")
_OF_THE_CLOCK = ("seconds/", "tokens_per_second", "flops_per_second", "balance", "mfu", "memory")
_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of each of two ranks in each case."""
    folder = tmp_path_factory.mktemp("megatron")
    load_object(f"{_TESTS / 'conftest.py'}:write_models", "function")(folder)
    run_on_ranks(2, _SCRIPT, folder, folder, *_CASES, log=folder / "log", device="cuda")
    return folder


@pytest.mark.parametrize("name", _CASES)
def test_two_gpus_compute_what_one_rank_on_a_cpu_does(name: str, folder: Path):
    from agentloop.trainer.learner.fsdp.learner import FsdpLearner

    step: Any = load_object(f"{_SCRIPT}:step", "function")
    want = step(FsdpLearner(_CASES[name].config(folder, device="cpu")), _CASES[name])
    for rank in range(2):
        got = torch.load(folder / f"{name}-{rank}.pt", weights_only=True, map_location="cpu")
        for ours, theirs in zip(got["logprobs"], want["logprobs"], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=_TOLERANCE)
        for key, value in want["metrics"].items():
            if not key.startswith(_OF_THE_CLOCK):
                assert got["metrics"][key] == pytest.approx(value, rel=_TOLERANCE, abs=1e-5), key
        shared = got["weights"].keys() & want["weights"].keys()
        assert len(shared) > 20
        for key in shared:
            difference = (got["weights"][key] - want["weights"][key]).norm() / want["weights"][key].norm()
            assert difference <= _TOLERANCE, (key, difference)
