"""Turns of vLLM that need the tokenizer of the model: those with stop strings, and those with a grammar."""

from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from transformers import AutoTokenizer

from agentloop.engines.vllm.engine import VllmEngine
from agentloop.registry.named_objects import load_object

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

_TESTS = Path(__file__).parents[3]
_STOP_STRINGS = _TESTS / "agentloop" / "engines" / "test_stop_strings.py"
_GRAMMARS = _TESTS / "trainer" / "learner" / "test_constrained_turns.py"
MODEL = load_object(f"{_STOP_STRINGS}:MODEL", "model")

prompt = load_object(f"{_STOP_STRINGS}:prompt", "fixture")
test_stop_string_only_shortens_the_turn = load_object(
    f"{_STOP_STRINGS}:test_stop_string_only_shortens_the_turn", "test"
)
test_unmatched_stop_string_changes_nothing = load_object(
    f"{_STOP_STRINGS}:test_unmatched_stop_string_changes_nothing", "test"
)
test_stop_at_the_token_limit_counts_as_a_stop = load_object(
    f"{_STOP_STRINGS}:test_stop_at_the_token_limit_counts_as_a_stop", "test"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine():
    engine = VllmEngine(MODEL, dtype="float32", max_model_len=384, kv_cache_memory_bytes=64 << 20, max_num_seqs=8)
    await engine.start()
    yield engine
    await engine.close()


async def test_log_probabilities_under_a_grammar_are_those_of_the_learner(engine):
    play, samples_of, learner = (
        load_object(f"{_GRAMMARS}:{name}", "helper") for name in ("play", "samples_of", "learner")
    )
    samples = samples_of(await play(AutoTokenizer.from_pretrained(MODEL), engine))
    for sample, logprobs in zip(samples, learner(MODEL).logprobs(samples), strict=True):
        np.testing.assert_allclose(logprobs, sample.logprobs[sample.loss_mask], atol=1e-3)
