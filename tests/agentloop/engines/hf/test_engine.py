"""`HfEngine` against transformers itself, on models of random weights."""

import asyncio
import gc
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from agentloop.engines.base import FinishReason, SamplingParams
from agentloop.engines.hf import worker
from agentloop.engines.hf.cache import SlotCache
from agentloop.engines.hf.engine import HfEngine
from agentloop.engines.hf.model import load_model
from agentloop.engines.hf.slots import SlotTable
from agentloop.errors import EngineError, UserError
from agentloop.weights.tensors import TensorWeights
from tests.support.small_models import save_small_model

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,
}
MODELS = {
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(head_dim=16, tie_word_embeddings=True, **SIZES)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES)),
    "qwen2-sliding": (
        Qwen2ForCausalLM,
        Qwen2Config(use_sliding_window=True, sliding_window=5, max_window_layers=1, **SIZES),
    ),
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES)),
}
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


def model_of(kind="qwen3", seed=0):
    torch.manual_seed(seed)
    model_class, config = MODELS[kind]
    return model_class(config).eval()


def prompts_of(count, low=3, high=60, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, rng.integers(low, high)).tolist() for _ in range(count)]


def logprobs_of(model, prompt, ids, temperature=1.0):
    """Return the log-probabilities of `ids` after `prompt`, by one plain forward pass."""
    tokens = torch.tensor([[*prompt, *ids]])
    with torch.inference_mode():
        logits = model(tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, -1)


@pytest.fixture
async def make():
    engines = []

    async def start(model, **options):
        engines.append(HfEngine(model, device="cpu", **{"seed": 0, "max_model_len": 256, **options}))
        await engines[-1].start()
        return engines[-1]

    yield start
    for engine in engines:
        await engine.close()


async def turns(engine, prompts, params, prefix=""):
    return await asyncio.gather(
        *(engine.generate(prompt, params, trajectory_id=f"{prefix}{i}") for i, prompt in enumerate(prompts))
    )


@pytest.mark.parametrize("kind", MODELS)
async def test_concurrent_greedy_turns_match_transformers(make, kind):
    model = model_of(kind)
    engine = await make(model, max_slots=8, max_batch_tokens=64)  # more prompts than slots; prompts in chunks
    prompts = prompts_of(20)
    for prompt, got in zip(prompts, await turns(engine, prompts, GREEDY), strict=True):
        reference = logprobs_of(model, prompt, got.ids)
        chosen = reference[range(8), list(got.ids)]
        # The best token, or one that is equal up to float noise.
        assert torch.all(reference.max(-1).values - chosen < 1e-4)
        np.testing.assert_allclose(got.logprobs, chosen, atol=1e-4)
        assert got.finish_reason is FinishReason.LENGTH
        assert list(got.versions) == [0] * 8


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.8, 0), (1.0, 5), (0.8, 11), (0.3, 3)])
async def test_logprobs_are_those_of_the_distribution_that_tokens_are_sampled_from(make, top_p, top_k):
    model = model_of()
    engine = await make(model)
    params = SamplingParams(max_tokens=30, temperature=0.7, top_p=top_p, top_k=top_k)
    prompts = prompts_of(6)
    for prompt, got in zip(prompts, await turns(engine, prompts, params), strict=True):
        for logprobs, token, found in zip(
            logprobs_of(model, prompt, got.ids, 0.7).double().numpy(), got.ids, got.logprobs, strict=True
        ):
            probabilities = np.exp(np.sort(logprobs)[::-1][: top_k or None])
            before = np.cumsum(probabilities) - probabilities
            kept = probabilities[before < top_p * probabilities.sum()].sum()
            assert found == pytest.approx(logprobs[token] - np.log(kept), abs=1e-3)
            assert found <= 1e-6


async def test_later_turns_reuse_the_cache_and_agree_with_a_fresh_engine(make):
    model = model_of()
    engine = await make(model)
    prompt = prompts_of(1, 40, 41)[0]
    computed = count_tokens(engine)
    for turn in range(4):
        got = await engine.generate(prompt, GREEDY, trajectory_id="a")
        reference = logprobs_of(model, prompt, got.ids)
        np.testing.assert_allclose(got.logprobs, reference[range(8), list(got.ids)], atol=1e-4)
        # A turn computes its new prompt tokens and its sampled tokens except the last.
        new = 40 if turn == 0 else 1 + 5
        assert computed() == new + 7
        prompt = [*prompt, *got.ids, *range(5)]


async def test_prompts_with_a_common_prefix_share_computation(make):
    model = model_of()
    engine = await make(model)
    computed = count_tokens(engine)
    shared = prompts_of(1, 100, 101)[0]
    prompts = [[*shared, *tail] for tail in prompts_of(8, 4, 9)]
    for prompt, got in zip(prompts, await turns(engine, prompts, GREEDY), strict=True):
        reference = logprobs_of(model, prompt, got.ids)
        np.testing.assert_allclose(got.logprobs, reference[range(8), list(got.ids)], atol=1e-4)
    assert computed() == 100 + sum(len(prompt) - 100 for prompt in prompts) + 8 * 7


def count_tokens(engine):
    """Return a function that counts tokens through the model since its last call."""
    seen = []
    engine.model.get_input_embeddings().register_forward_hook(lambda _m, args, _o: seen.append(args[0].numel()))

    def since():
        total = sum(seen)
        seen.clear()
        return total

    return since


async def first_token(computed):
    for _ in range(5000):
        if computed():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("nothing was computed in five seconds")


async def test_seeded_turn_does_not_depend_on_the_batch(make):
    model = model_of()
    params = SamplingParams(max_tokens=40, seed=5, top_p=0.95)
    prompts = prompts_of(12)
    alone = await make(model, seed=1)
    crowd = await make(model, seed=2, max_batch_tokens=32)
    one = await alone.generate(prompts[3], params, trajectory_id="x")
    many = await turns(crowd, prompts, params)
    assert one.ids == many[3].ids
    assert len({tuple(got.ids) for got in many}) == 12


async def test_sampled_frequencies_follow_the_distribution(make):
    model = model_of()
    engine = await make(model)
    prompt = prompts_of(1)[0]
    draws = await turns(engine, [prompt] * 2000, SamplingParams(max_tokens=1))
    expected = logprobs_of(model, prompt, [0]).exp()[0].numpy()
    counts = np.bincount([got.ids[0] for got in draws], minlength=VOCABULARY)
    # Five standard deviations of a count, token by token.
    assert np.all(np.abs(counts - 2000 * expected) <= 5 * np.sqrt(2000 * expected * (1 - expected)) + 1)


async def test_stop_token_is_the_last_id_and_length_marks_truncation(make):
    engine = await make(model_of(), max_model_len=64)
    prompt = prompts_of(1)[0]
    free = await engine.generate(prompt, SamplingParams(max_tokens=20, seed=3), trajectory_id="a")
    stop = free.ids[7]
    first = list(free.ids).index(stop)
    params = SamplingParams(max_tokens=20, seed=3, stop_token_ids=(95 - stop, stop))
    got = await engine.generate(prompt, params, trajectory_id="b")
    assert (list(got.ids), got.finish_reason) == (list(free.ids[: first + 1]), FinishReason.STOP)
    assert free.finish_reason is FinishReason.LENGTH
    full = await engine.generate(list(range(60)), SamplingParams(max_tokens=20), trajectory_id="c")
    assert (len(full.ids), full.finish_reason) == (4, FinishReason.LENGTH)
    with pytest.raises(EngineError, match="64 tokens"):
        await engine.generate([1] * 64, params, trajectory_id="d")
    with pytest.raises(EngineError, match="vocabulary"):
        await engine.generate([1, VOCABULARY], params, trajectory_id="d")


async def test_slots_of_idle_trajectories_are_evicted_and_recomputed(make):
    model = model_of()
    engine = await make(model, max_slots=3)
    histories = prompts_of(7)
    for _ in range(3):
        for prompt, got in zip(histories, await turns(engine, histories, GREEDY), strict=True):
            reference = logprobs_of(model, prompt, got.ids)
            np.testing.assert_allclose(got.logprobs, reference[range(8), list(got.ids)], atol=1e-4)
            prompt.extend(got.ids)
    for i in range(7):
        engine.release(str(i))
    engine.release("unknown")
    await turns(engine, histories[:2], GREEDY)


async def test_cache_grows_beyond_its_initial_size(make):
    model = model_of()
    engine = await make(model, max_model_len=512)
    prompts = prompts_of(12, 200, 300)
    params = SamplingParams(max_tokens=150)
    for prompt, got in zip(prompts, await turns(engine, prompts, params), strict=True):
        expected = logprobs_of(model, prompt, got.ids)[range(150), list(got.ids)]
        np.testing.assert_allclose(got.logprobs, expected, atol=1e-3)


async def test_cancelled_turn_frees_its_slot(make):
    engine = await make(model_of(), max_slots=1)
    long = asyncio.create_task(engine.generate([1, 2], SamplingParams(max_tokens=250), trajectory_id="a"))
    queued = asyncio.create_task(engine.generate([1, 2], SamplingParams(max_tokens=250), trajectory_id="b"))
    await asyncio.sleep(0.02)
    long.cancel()
    queued.cancel()
    got = await engine.generate([3, 4], GREEDY, trajectory_id="c")
    assert len(got.ids) == 8
    assert long.cancelled()
    assert queued.cancelled()


async def test_weight_update_applies_between_tokens_of_running_turns(make):
    old, new = model_of(seed=0), model_of(seed=9)
    engine = await make(old)
    prompts = prompts_of(5)
    running = asyncio.create_task(turns(engine, prompts, SamplingParams(max_tokens=150, temperature=0.0)))
    sampled = count_tokens(engine)
    await first_token(sampled)
    await engine.update_weights(TensorWeights(list(new.named_parameters())), 7)
    assert engine.policy_version == 7
    for prompt, got in zip(prompts, await running, strict=True):
        versions = list(got.versions)
        boundary = versions.index(7)
        assert versions == [0] * boundary + [7] * (150 - boundary)
        with torch.inference_mode():
            # The old model wrote the cache up to the boundary; the new one reads it.
            start = old(torch.tensor([[*prompt, *got.ids[: boundary - 1]]]), use_cache=True) if boundary else None
            rest = new(
                torch.tensor([list(got.ids[boundary - 1 : -1]) if boundary else [*prompt, *got.ids[:-1]]]),
                past_key_values=start.past_key_values if start else None,
            )
        expected = torch.log_softmax(rest.logits[0, -(150 - boundary) :].float(), -1)
        np.testing.assert_allclose(
            got.logprobs[boundary:], expected[range(150 - boundary), list(got.ids[boundary:])], atol=2e-3
        )
        reference = logprobs_of(old, prompt, got.ids)[range(boundary), list(got.ids[:boundary])]
        np.testing.assert_allclose(got.logprobs[:boundary], reference, atol=2e-3)
        # The next turn computes its prefix with the new weights alone.
    again = [[*prompt, *got.ids] for prompt, got in zip(prompts, await running, strict=True)]
    for prompt, got in zip(again, await turns(engine, again, GREEDY), strict=True):
        reference = logprobs_of(new, prompt, got.ids)
        np.testing.assert_allclose(got.logprobs, reference[range(8), list(got.ids)], atol=1e-4)
        assert list(got.versions) == [7] * 8


async def test_pause_stops_sampling_until_resume(make):
    engine = await make(model_of())
    computed = count_tokens(engine)
    running = asyncio.create_task(engine.generate([1, 2], SamplingParams(max_tokens=200), trajectory_id="a"))
    await first_token(computed)
    await engine.pause()
    computed()
    await engine.update_weights(TensorWeights(list(model_of(seed=1).named_parameters())), 1)  # stays paused
    await asyncio.sleep(0.05)
    assert computed() == 0
    assert not running.done()
    await engine.resume()
    got = await running
    assert len(got.ids) == 200
    assert set(got.versions) == {0, 1}


def bytes_of_caches():
    """Bytes of keys and values of all engines of this process; no other tensors have six dimensions."""
    tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.dim() == 6]
    return sum({each.data_ptr(): each.nbytes for each in tensors}.values())


async def test_sleep_frees_the_cache_and_running_turns_resume_with_new_weights(make):
    old, new = model_of(seed=0), model_of(seed=9)
    engine = await make(old, max_slots=4)
    prompts = prompts_of(6)  # two of them wait for a slot
    running = asyncio.create_task(turns(engine, prompts, SamplingParams(max_tokens=100, temperature=0.0)))
    sampled = count_tokens(engine)
    await first_token(sampled)
    cached = bytes_of_caches()
    await engine.sleep()
    assert bytes_of_caches() < cached
    await engine.update_weights(TensorWeights(list(new.named_parameters())), 7)
    await engine.pause()
    sampled()
    await engine.wake()
    await engine.sleep()
    await engine.wake()
    await asyncio.sleep(0.02)
    assert sampled() == 0, "it was paused meanwhile"
    await engine.resume()
    for prompt, got in zip(prompts, await running, strict=True):
        boundary = list(got.versions).index(7)
        assert list(got.versions) == [0] * boundary + [7] * (100 - boundary)
        expected = torch.cat([
            logprobs_of(old, prompt, got.ids)[:boundary], logprobs_of(new, prompt, got.ids)[boundary:]
        ])  # fmt: skip
        np.testing.assert_allclose(got.logprobs, expected[range(100), list(got.ids)], atol=2e-3)
    assert boundary == 0, "the last one began after it slept"


async def test_mismatched_weights_are_named_and_nothing_changes(make):
    model = model_of()
    engine = await make(model)
    before = await engine.generate([1, 2, 3], GREEDY, trajectory_id="a")
    weights = {name: torch.zeros_like(tensor) for name, tensor in model.named_parameters()}
    with pytest.raises(EngineError, match=r"does not have: nonsense\.weight"):
        await engine.update_weights(TensorWeights([*weights.items(), ("nonsense.weight", torch.zeros(1))]), 1)
    with pytest.raises(EngineError, match=r"model\.norm\.weight \(3,\) instead of \(32,\)"):
        await engine.update_weights(TensorWeights({**weights, "model.norm.weight": torch.zeros(3)}.items()), 1)
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(EngineError, match=r"lack model\.layers\.1\.mlp\.up_proj\.weight"):
        await engine.update_weights(TensorWeights(weights.items()), 1)
    assert engine.policy_version == 0
    after = await engine.generate([1, 2, 3], GREEDY, trajectory_id="b")
    assert before == after


async def test_tied_weights_are_accepted_under_either_name(make):
    model, new = model_of(), model_of(seed=3)
    engine = await make(model)
    weights = dict(new.named_parameters())
    weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
    await engine.update_weights(TensorWeights(weights.items()), 1)
    got = await engine.generate([1, 2, 3], GREEDY, trajectory_id="a")
    np.testing.assert_allclose(got.logprobs, logprobs_of(new, [1, 2, 3], got.ids)[range(8), list(got.ids)], atol=1e-4)


async def test_engine_copies_the_given_module(make):
    model = model_of()
    engine = await make(model)
    before = await engine.generate([1, 2, 3], GREEDY, trajectory_id="a")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    after = await engine.generate([1, 2, 3], GREEDY, trajectory_id="b")
    assert before == after
    assert model.config._attn_implementation != "agentloop_slots"


async def test_broken_weights_fail_the_turn_and_free_its_state(make):
    model = model_of()
    engine = await make(model)
    broken = [(name, torch.full_like(tensor, float("nan"))) for name, tensor in model.named_parameters()]
    await engine.update_weights(TensorWeights(broken), 1)
    with pytest.raises(EngineError, match="NaN"):
        await engine.generate([1, 2, 3], GREEDY, trajectory_id="a")
    await engine.update_weights(TensorWeights(list(model.named_parameters())), 2)
    got = await turns(engine, [[1, 2, 3]] * 9, GREEDY)
    assert not np.isnan([list(g.logprobs) for g in got]).any()


async def test_turns_fail_and_do_not_hang_if_the_cache_cannot_grow(make, monkeypatch):
    engine = await make(model_of(), max_model_len=512)
    long = prompts_of(3, low=300, high=400)
    with monkeypatch.context() as patch:
        patch.setattr(SlotCache, "_empty", lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
        async with asyncio.timeout(20):
            found = await asyncio.gather(
                *(engine.generate(prompt, GREEDY, trajectory_id=str(i)) for i, prompt in enumerate(long)),
                return_exceptions=True,
            )
    assert [type(error) for error in found] == [EngineError] * 3
    assert "out of memory" in str(found[0])
    assert [len(got.ids) for got in await turns(engine, long, GREEDY)] == [8] * 3


async def test_turns_fail_and_do_not_hang_while_an_error_stays(make, monkeypatch):
    """As after an error of CUDA, when every operation on the GPU fails."""
    engine = await make(model_of())

    def fail(*_):
        raise RuntimeError("illegal memory access")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "forward", fail)
        patch.setattr(SlotTable, "forget", fail)
        for _ in range(3):
            async with asyncio.timeout(20):
                with pytest.raises(EngineError, match="illegal memory access"):
                    await engine.generate([1, 2, 3], GREEDY, trajectory_id="a")
    assert len((await engine.generate([1, 2, 3], GREEDY, trajectory_id="a")).ids) == 8


async def test_close_ends_running_turns_and_is_idempotent(make):
    engine = await make(model_of())
    params = SamplingParams(max_tokens=200)
    running = [asyncio.create_task(engine.generate([1, 2], params, trajectory_id=str(i))) for i in range(300)]
    await asyncio.sleep(0.05)
    await engine.close()
    for got in await asyncio.gather(*running):
        assert got.finish_reason is FinishReason.ABORT
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([1, 2], params, trajectory_id="z")


async def test_a_turn_that_begins_while_the_engine_closes_does_not_hang(make, monkeypatch):
    engine = await make(model_of())
    monkeypatch.setattr(engine._stops, "of", lambda strings: time.sleep(0.3))
    params = SamplingParams(max_tokens=8, stop_strings=("end",))
    turn = asyncio.create_task(engine.generate([1, 2], params, trajectory_id="a"))
    await asyncio.sleep(0.05)
    await engine.close()
    async with asyncio.timeout(20):
        with pytest.raises(EngineError, match="closed"):
            await turn


async def test_model_folder_loads_and_bad_folder_raises(tmp_path):
    model = model_of()
    model.save_pretrained(tmp_path / "model")
    engine = HfEngine(tmp_path / "model", device="cpu")
    await engine.start()
    assert engine.max_model_len == 512
    got = await engine.generate([1, 2, 3], GREEDY, trajectory_id="a")
    np.testing.assert_allclose(got.logprobs, logprobs_of(model, [1, 2, 3], got.ids)[range(8), list(got.ids)], atol=1e-4)
    await engine.close()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"cannot load a model from .*empty"):
        await HfEngine(tmp_path / "empty", device="cpu").start()
    with pytest.raises(UserError, match="positions of the model"):
        await HfEngine(model, device="cpu", max_model_len=513).start()
    with pytest.raises(UserError, match="lower max_model_len"):
        await HfEngine(model, device="cpu", cache_bytes=1000).start()
    with pytest.raises(UserError, match="not a dtype of torch"):
        HfEngine(model, dtype="float33")


async def test_missing_gpu_raises_one_clear_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"engine\.options\.device is cuda, but torch sees no CUDA device"):
        await HfEngine(model_of(), device="cuda").start()


async def test_unsupported_attention_is_rejected():
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    config = GPTNeoConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]]
    )
    with pytest.raises(UserError, match="cannot run GPTNeoForCausalLM"):
        await HfEngine(GPTNeoForCausalLM(config), device="cpu").start()


@pytest.mark.slow
def test_state_that_cannot_be_kept_is_rejected_and_experts_are_accepted(tmp_path: Path):
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(UserError, match="cannot run JambaForCausalLM: its logits change"):
            load_model(save_small_model("jamba", tmp_path / "state"), torch.device("cpu"), dtype)
        model = load_model(save_small_model("qwen3_moe", tmp_path / "experts"), torch.device("cpu"), dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"device": "cdua"}, r"engine\.options\.device='cdua' is not a device of torch; use 'cpu' or 'cuda'"),
        ({"max_model_len": 0}, r"engine\.options\.max_model_len is 0: set it to 1 or more"),
        ({"max_slots": -1}, r"engine\.options\.max_slots is -1: set it to 1 or more"),
    ],
)
def test_impossible_options_are_refused_before_the_model_is_loaded(options, problem):
    with pytest.raises(UserError, match=problem):
        HfEngine("no model", **options)
