"""In each layout, loss, gradients, log-probabilities and metrics are those of the FSDP backend on one rank."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.registry.named_objects import load_object
from agentloop.trainer.learner.checkpoint_files import CheckpointFiles
from agentloop.trainer.learner.fsdp.learner import FsdpLearner

pytestmark = pytest.mark.slow

_SCRIPT = Path(__file__).parent / "on_ranks.py"
_CASES = load_object(f"{_SCRIPT}:CASES", "dictionary")
TP, PP, EP = "tensor_parallel", "pipeline_parallel", "expert_parallel"
_ONE_TOKEN = 0.006
"""One of 181 tokens has a ratio at the bound, so rounding decides whether it is clipped."""
_OF_FSDP_ALONE = "experts/"
_OF_THE_CLOCK = ("seconds/", "tokens_per_second", "flops_per_second", "balance")
_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def results(models: Path, tmp_path_factory: pytest.TempPathFactory, run_on_ranks: Callable[..., None]) -> Path:
    """A folder with the results of each of four ranks in each case."""
    out = tmp_path_factory.mktemp("results")
    run_on_ranks(4, _SCRIPT, models, out, timeout=900.0)
    return out


@pytest.fixture(scope="module")
def expected(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the results of the FSDP backend for a case, with the weights that it saved."""
    folder = tmp_path_factory.mktemp("expected")
    step = load_object(f"{_SCRIPT}:step", "function")

    @cache
    def of(model: str, options: str) -> dict[str, Any]:
        case = next(case for case in _CASES.values() if (case.model, repr(case.options)) == (model, options))
        hf = folder / f"{model}{len(list(folder.iterdir()))}"
        found = step(FsdpLearner(case.config(models)), case, hf)
        files = CheckpointFiles(hf)
        return {**found, "weights": {name: files.read(name) for name in files.shapes}}

    return lambda case: of(case.model, repr(case.options))


@pytest.mark.parametrize("name", _CASES)
def test_each_layout_equals_one_rank(name: str, results: Path, expected: Any):
    want = expected(_CASES[name])
    for rank in range(4):
        got = torch.load(results / f"{name}-{rank}.pt", weights_only=True)
        for ours, theirs in zip(got["logprobs"], want["logprobs"], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=_TOLERANCE)
        compared = {key: value for key, value in want["metrics"].items() if not key.startswith(_OF_FSDP_ALONE)}
        assert got["metrics"].keys() == compared.keys()
        for key, value in compared.items():
            if not key.startswith(_OF_THE_CLOCK):
                slack = _ONE_TOKEN if key.startswith("clip_fraction") else 1e-6
                assert got["metrics"][key] == pytest.approx(value, rel=_TOLERANCE, abs=slack), key
        assert got["weights"].keys() == want["weights"].keys()
        for key, value in want["weights"].items():
            difference = (got["weights"][key] - value).norm() / value.norm()
            assert difference <= _TOLERANCE, (key, difference)


@pytest.mark.parametrize("name", [name for name, case in _CASES.items() if case.resumes])
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(name: str, results: Path):
    assert all(torch.load(results / f"{name}-{rank}.pt", weights_only=True)["resumed"] for rank in range(4))


@pytest.mark.parametrize("name", [name for name, case in _CASES.items() if case.resumes])
def test_published_weights_are_spread_over_the_ranks(name: str, results: Path):
    assert [torch.load(results / f"{name}-{rank}.pt", weights_only=True)["parts"] for rank in range(4)] == [4, 0, 0, 0]


@pytest.mark.parametrize("name", [name for name, case in _CASES.items() if case.resumes])
def test_transformers_loads_the_saved_model(name: str, results: Path):
    saved = results / f"{name}-hf"
    weights = torch.load(results / f"{name}-0.pt", weights_only=True)["weights"]
    files = CheckpointFiles(saved)
    assert files.shapes.keys() == weights.keys()
    assert all(torch.equal(files.read(key), value) for key, value in weights.items())
    model, report = AutoModelForCausalLM.from_pretrained(saved, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.equal(model.model.embed_tokens.weight, weights["model.embed_tokens.weight"])


@pytest.mark.parametrize("name", [name for name, case in _CASES.items() if case.degrees])
def test_no_rank_gathers_more_than_one_layer(name: str, results: Path):
    for rank in range(4):
        got = torch.load(results / f"{name}-{rank}.pt", weights_only=True)
        sizes = {key: value.numel() for key, value in got["weights"].items()}
        layers = [sum(n for key, n in sizes.items() if f".layers.{layer}." in key) for layer in range(4)]
        largest = max(*layers, sizes["model.embed_tokens.weight"])
        messages = got["messages"]
        assert max(messages, default=0) <= largest < 0.5 * sum(sizes.values())
        # Nothing is fetched ahead: the last messages come with the last parameters.
        assert sum(messages[: got["before"][0]]) <= 2 * sizes["model.embed_tokens.weight"]
        divides = {TP, PP, EP} & _CASES[name].degrees.keys()
        assert bool(messages) == bool(divides)
