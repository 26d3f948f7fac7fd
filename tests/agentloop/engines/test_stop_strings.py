"""Stop strings end turns at a token boundary in every engine."""

from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.engines import create
from agentloop.engines.base import FinishReason, SamplingParams
from agentloop.engines.stop_strings import StopFinder, StopStrings
from agentloop.errors import EngineError
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for

MODEL = Path(__file__).parents[3] / "recipes" / "search_r1" / "checkpoint"
TOKENIZER = build_tokenizer().backend_tokenizer


def ids_of(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def first_end(ids, strings):
    """Return the end of the turn by definition: decode every prefix of it."""
    texts = [TOKENIZER.decode(ids[:end], skip_special_tokens=False) for end in range(len(ids) + 1)]
    return next((end for end, text in enumerate(texts) if any(string in text for string in strings)), None)


def test_token_that_completes_the_stop_string_is_kept_whole():
    ids = ids_of("print(1)\n</code>\nmore")
    end = StopStrings(TOKENIZER, ["</code>"]).end(ids)
    kept = TOKENIZER.decode(ids[:end])
    assert kept == "print(1)\n</code>\n", "the tokenizer has the line break in one token with the bracket"
    assert TOKENIZER.decode(ids[: end - 1]) == "print(1)\n</code"


def test_first_of_several_stop_strings_wins():
    stops = StopStrings(TOKENIZER, ["</sql>", "</solution>"])
    ids = ids_of("a</solution>b</sql>c")
    assert TOKENIZER.decode(ids[: stops.end(ids)]).startswith("a</solution>")
    assert stops.end(ids_of("a</solution b</sql")) is None
    assert stops.end([]) is None


@pytest.mark.parametrize("before", [0, 1, 1999, 2000])
def test_long_turn_is_not_decoded_for_every_token(before):
    class Counting:
        decoded = 0

        def decode(self, ids, **options):
            self.decoded += len(ids)
            return TOKENIZER.decode(ids, **options)

    ids = ids_of("a" * before + "</code>" + "b" * (2000 - before))
    counting = Counting()
    end = StopStrings(counting, ["</code>"]).end(ids)
    assert TOKENIZER.decode(ids[:end]).endswith("</code>")
    assert "</code>" not in TOKENIZER.decode(ids[: end - 1])
    assert counting.decoded < 25 * len(ids)


def test_added_tokens_have_text():
    ids = ids_of("a<tool_call>b</tool_call>c")
    end = StopStrings(TOKENIZER, ["</tool_call>"]).end(ids)
    assert TOKENIZER.decode(ids[:end], skip_special_tokens=False) == "a<tool_call>b</tool_call>"


PIECES = st.lists(
    st.sampled_from(["<", "/", "code", ">", "</code>", "\n", "x", " ", "é", "🙂", "</", "code>", "<think>"])
)


@settings(deadline=None, max_examples=200)
@given(PIECES, st.sampled_from([("</code>",), ("🙂",), ("é", "xx"), ("> ", "\n\n"), ("</code>", "</co")]))
def test_turn_ends_at_the_first_occurrence(pieces, strings):
    ids = ids_of("".join(pieces))
    assert StopStrings(TOKENIZER, strings).end(ids) == first_end(ids, strings)


@pytest.mark.parametrize("model", [None, "./no-such-folder"])
def test_engine_without_tokenizer_raises(model):
    with pytest.raises(EngineError, match="tokenizer"):
        StopFinder(model).of(("</code>",))
    assert StopFinder(model).of(()) is None


# In the engines: the model of a recipe, which answers "<answer>...</answer>". vllm/test_tokenizer.py has vLLM.


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["hf", "scripted"])
async def engine(request):
    options = {
        "hf": {"device": "cpu"},
        "scripted": {"script": [ids_of("<answer>123</answer><|im_end|>")]},
    }[request.param]
    engine = create(request.param, model=str(MODEL), max_model_len=320, **options)
    await engine.start()
    yield engine
    await engine.close()


def params(**changes):
    given = {"max_tokens": 40, "stop_token_ids": (TOKENIZER.token_to_id("<|im_end|>"),), "seed": 5, **changes}
    return SamplingParams(**given)


@pytest.fixture(scope="module")
def prompt():
    return renderer_for(MODEL).render_prompt([{"role": "user", "content": "What is the mass of planet 104?"}])


async def sampled(engine, prompt, name, **changes):
    return await engine.generate(prompt, params(**changes), trajectory_id=name)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("seed", range(3))
async def test_stop_string_only_shortens_the_turn(engine, prompt, seed):
    free = await sampled(engine, prompt, f"free-{seed}", seed=seed)
    text = TOKENIZER.decode(list(free.ids)[:-1], skip_special_tokens=False)
    string = text[len(text) // 2 :][:3]
    stopped = await sampled(engine, prompt, f"stopped-{seed}", seed=seed, stop_strings=(string, "never said"))
    end = first_end(list(free.ids), [string])
    assert 0 < end < len(free.ids)
    assert list(stopped.ids) == list(free.ids)[:end]
    assert stopped.finish_reason is FinishReason.STOP
    assert list(stopped.logprobs) == pytest.approx(list(free.logprobs)[:end], abs=1e-3)
    assert list(stopped.versions) == list(free.versions)[:end]


@pytest.mark.asyncio(loop_scope="module")
async def test_unmatched_stop_string_changes_nothing(engine, prompt):
    free = await sampled(engine, prompt, "free")
    same = await sampled(engine, prompt, "same", stop_strings=("never said",))
    assert list(same.ids) == list(free.ids)
    assert same.finish_reason is FinishReason.STOP


@pytest.mark.asyncio(loop_scope="module")
async def test_stop_at_the_token_limit_counts_as_a_stop(engine, prompt):
    free = await sampled(engine, prompt, "free")
    text = TOKENIZER.decode(list(free.ids)[:3], skip_special_tokens=False)
    stopped = await sampled(engine, prompt, "stopped", max_tokens=3, stop_strings=(text,))
    assert (len(stopped.ids), stopped.finish_reason) == (3, FinishReason.STOP)
    cut = await sampled(engine, prompt, "cut", max_tokens=3, stop_strings=("never said",))
    assert (len(cut.ids), cut.finish_reason) == (3, FinishReason.LENGTH)
