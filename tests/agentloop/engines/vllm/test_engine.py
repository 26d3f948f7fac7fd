"""`VllmEngine` with a real vLLM and a tiny Qwen3 of random weights. One engine for the whole file: it starts slowly.

tests/gpu runs the same tests on CUDA.
"""

import asyncio
import copy
import gc
import os
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentloop.engines.base import FinishReason, SamplingParams
from agentloop.engines.token_listeners import listening
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.errors import EngineError
from agentloop.types.image import PixelFormat, PlacedImage, SeenImage
from agentloop.weights.tensors import TensorWeights

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

CUDA = torch.cuda.is_available()
DTYPE = torch.float32
TOLERANCE = 2e-2 if CUDA else 2e-3
"""Kernels on CUDA multiply float32 in TF32; benchmarks.learner.engine_learner_parity measures bfloat16."""
VOCABULARY = 128
LONGEST = 512
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)


def random_model(seed=0, *, tied=False):
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=3,
    )
    return Qwen3ForCausalLM(config).to(DTYPE).eval()


def parrot(model, token):
    """Return weights with which the model always samples `token`."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for layer in other.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        other.model.embed_tokens.weight.fill_(1.0)
        other.model.norm.weight.fill_(1.0)
        other.lm_head.weight.zero_()
        other.lm_head.weight[token] = 1.0
    return list(other.named_parameters())


def reference(model, prompt, ids, temperature=1.0):
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, -1)


@pytest.fixture(scope="module")
def model():
    return random_model()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    model.save_pretrained(folder)
    engine = VllmEngine(
        folder, dtype=str(DTYPE).removeprefix("torch."), max_model_len=LONGEST, max_num_seqs=64,
        gpu_memory_utilization=0.3, kv_cache_memory_bytes=1 << 30, sleeps=CUDA,
    )  # fmt: skip
    await engine.start()
    yield engine
    await engine.close()


def prompts_of(count, seed=1, low=3, high=80):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, rng.integers(low, high)).tolist() for _ in range(count)]


async def turns(engine, prompts, params):
    return await asyncio.gather(
        *(engine.generate(prompt, params, trajectory_id=f"t{i}") for i, prompt in enumerate(prompts))
    )


async def test_greedy_turns_match_transformers(engine, model):
    prompts = prompts_of(24)
    for prompt, got in zip(prompts, await turns(engine, prompts, GREEDY), strict=True):
        expected = reference(model, prompt, got.ids)
        chosen = expected[range(12), list(got.ids)]
        assert torch.all(expected.max(-1).values - chosen < TOLERANCE)
        np.testing.assert_allclose(got.logprobs, chosen, atol=TOLERANCE)
        assert got.finish_reason is FinishReason.LENGTH
        assert list(got.versions) == [0] * 12


async def test_logprobs_include_the_temperature(engine, model):
    prompts = prompts_of(70, seed=2)  # more than run at once
    params = SamplingParams(max_tokens=30, temperature=0.7)
    for prompt, got in zip(prompts, await turns(engine, prompts, params), strict=True):
        expected = reference(model, prompt, got.ids, 0.7)[range(30), list(got.ids)]
        np.testing.assert_allclose(got.logprobs, expected, atol=2 * TOLERANCE)


async def test_truncated_distribution_is_renormalised(engine, model):
    prompt = prompts_of(1)[0]
    got = await engine.generate(prompt, SamplingParams(max_tokens=20, top_k=3), trajectory_id="a")
    best, order = reference(model, prompt, got.ids).topk(3)
    expected = torch.log_softmax(best, -1)
    for i, token in enumerate(got.ids):
        rank = order[i].tolist().index(token)
        assert abs(got.logprobs[i] - expected[i, rank]) < 2 * TOLERANCE


async def test_listener_receives_tokens_while_the_turn_runs(engine):
    (prompt,) = prompts_of(1)
    params = SamplingParams(max_tokens=200, seed=5)
    alone = await engine.generate(prompt, params, trajectory_id="t")
    heard: list[list[int]] = []
    with listening(lambda ids: heard.append(list(ids))):
        turn = await engine.generate(prompt, params, trajectory_id="t")
    assert turn == alone
    told = [token for ids in heard for token in ids]
    assert told, "a busy machine may tell several steps at once, not all of them"
    assert told == turn.ids.tolist()[: len(told)]


async def test_seed_reproduces_the_turn(engine):
    prompt = prompts_of(1)[0]
    params = SamplingParams(max_tokens=30, seed=7)
    first = await engine.generate(prompt, params, trajectory_id="a")
    again = await engine.generate(prompt, params, trajectory_id="b")
    assert first.ids == again.ids


async def test_seeded_turns_are_exact_if_prompts_exceed_one_step(engine):
    prompts = prompts_of(40, seed=3, low=400, high=480)
    got = await asyncio.gather(
        *(
            engine.generate(prompt, SamplingParams(max_tokens=4, seed=i), trajectory_id=f"t{i}")
            for i, prompt in enumerate(prompts)
        )
    )
    assert [len(turn.ids) for turn in got] == [4] * 40


async def test_stop_token_is_the_last_id_and_length_marks_truncation(engine):
    prompt = prompts_of(1)[0]
    free = await engine.generate(prompt, SamplingParams(max_tokens=30, seed=5), trajectory_id="a")
    assert free.finish_reason is FinishReason.LENGTH
    stop = free.ids[9]
    first = list(free.ids).index(stop)
    params = SamplingParams(max_tokens=30, seed=5, stop_token_ids=(stop,))
    got = await engine.generate(prompt, params, trajectory_id="b")
    assert (list(got.ids), got.finish_reason) == (list(free.ids[: first + 1]), FinishReason.STOP)
    full = await engine.generate([1] * (LONGEST - 4), SamplingParams(max_tokens=30), trajectory_id="c")
    assert (len(full.ids), full.finish_reason) == (4, FinishReason.LENGTH)
    with pytest.raises(EngineError, match=f"{LONGEST} tokens"):
        await engine.generate([1] * LONGEST, params, trajectory_id="d")


async def test_eos_token_does_not_stop_a_turn_unless_requested(engine, model):
    await engine.update_weights(TensorWeights(parrot(model, 3)), 0)
    got = await engine.generate([1, 2], SamplingParams(max_tokens=9, temperature=0.0), trajectory_id="a")
    assert (list(got.ids), got.finish_reason) == ([3] * 9, FinishReason.LENGTH)
    await engine.update_weights(TensorWeights(list(model.named_parameters())), 0)


async def test_later_turns_reuse_the_cached_prefix(engine, model):
    hits = []
    original = engine.llm.output_processor.process_outputs

    def spy(outputs, *args, **kwargs):
        hits.extend(getattr(o, "num_cached_tokens", 0) or 0 for o in outputs)
        hits.extend(s.num_local_cached_tokens for o in outputs if (s := getattr(o, "prefill_stats", None)))
        return original(outputs, *args, **kwargs)

    engine.llm.output_processor.process_outputs = spy
    try:
        prompt = prompts_of(1, seed=9, low=300, high=301)[0]
        got = await engine.generate(prompt, GREEDY, trajectory_id="a")
        assert max(hits) == 0
        later = [*prompt, *got.ids, 5, 6]
        got = await engine.generate(later, GREEDY, trajectory_id="a")
        assert max(hits) >= 128
        np.testing.assert_allclose(
            got.logprobs, reference(model, later, got.ids)[range(12), list(got.ids)], atol=TOLERANCE
        )
        hits.clear()
        await engine.update_weights(TensorWeights(list(model.named_parameters())), 0)
        await engine.generate(later, GREEDY, trajectory_id="a")
        assert max(hits) == 0  # what older weights computed is not used
    finally:
        del engine.llm.output_processor.process_outputs


def lengths(engine):
    """Return the numbers of tokens that the running turns have sampled."""
    return [state.detokenizer.num_output_tokens() for state in engine.llm.output_processor.request_states.values()]


async def test_turns_wait_during_sleep_and_resume_with_new_weights(engine, model, monkeypatch):
    """On CPUs vLLM keeps its memory, and does everything else of its sleep: tests/gpu has the memory."""
    monkeypatch.setattr(engine, "sleeps", True)
    await engine.update_weights(TensorWeights(parrot(model, 4)), 4)
    running = asyncio.create_task(
        engine.generate([1, 2], SamplingParams(max_tokens=200, temperature=0.0), trajectory_id="a")
    )
    while not any(lengths(engine)):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await engine.sleep(keep_weights=False)
    sampled = lengths(engine)
    waiting = asyncio.create_task(engine.generate([1, 2], GREEDY, trajectory_id="b"))
    await engine.update_weights(TensorWeights(parrot(model, 5)), 5)
    await engine.pause()
    assert await engine.llm.is_sleeping()
    await engine.wake()
    assert not running.done()  # it was paused meanwhile
    await engine.sleep()
    await engine.resume()
    await engine.wake()
    got, later = await running, await waiting
    assert list(got.ids) == list(got.versions) == [4] * got.versions.count(4) + [5] * got.versions.count(5)
    assert 0 < sampled[0] <= got.versions.count(4) < 200
    assert list(later.ids) == list(later.versions) == [5] * 12
    await engine.update_weights(TensorWeights(list(model.named_parameters())), 0)


async def test_every_token_carries_its_weight_version(engine, model):
    """Weights of version v sample token v, so the ids show which weights sampled them."""
    await engine.update_weights(TensorWeights(parrot(model, 20)), 20)
    rng = np.random.default_rng(3)
    prompts = prompts_of(90, seed=4)  # some run, some wait, some end between the updates
    lengths = rng.integers(1, 400, 90)
    running = [
        asyncio.create_task(
            engine.generate(p, SamplingParams(max_tokens=int(n), temperature=0.0), trajectory_id=f"t{i}")
        )
        for i, (p, n) in enumerate(zip(prompts, lengths, strict=True))
    ]
    for version in range(21, 29):
        await asyncio.sleep(float(rng.uniform(0.05, 0.2)))
        await engine.update_weights(TensorWeights(parrot(model, version)), version)
        assert engine.policy_version == version
    results = await asyncio.gather(*running)
    for got, length in zip(results, lengths, strict=True):
        assert len(got.ids) == length
        assert got.ids == got.versions
    seen = {version for got in results for version in got.versions}
    assert len(seen) >= 4  # it did change while turns were running
    assert any(len(set(got.versions)) > 2 for got in results)
    await engine.update_weights(TensorWeights(list(model.named_parameters())), 0)


async def test_pause_stops_sampling_until_resume(engine, model):
    running = asyncio.create_task(engine.generate([1, 2], SamplingParams(max_tokens=300), trajectory_id="a"))
    await asyncio.sleep(0.1)
    await engine.pause()
    (before,) = lengths(engine)
    late = asyncio.create_task(engine.generate([1, 2], GREEDY, trajectory_id="b"))
    await engine.update_weights(TensorWeights(list(model.named_parameters())), 5)  # stays paused
    await asyncio.sleep(0.3)
    assert lengths(engine)[0] == before
    assert not running.done()
    assert not late.done()
    await engine.resume()
    got = await running
    assert list(got.versions) == [0] * before + [5] * (300 - before)
    assert set((await late).versions) == {5}
    await engine.update_weights(TensorWeights(list(model.named_parameters())), 0)


async def test_cancelled_turn_aborts_its_request(engine):
    task = asyncio.create_task(engine.generate([1, 2], SamplingParams(max_tokens=500), trajectory_id="a"))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.llm.output_processor.request_states == {}
    assert len((await engine.generate([1, 2], GREEDY, trajectory_id="a")).ids) == 12
    engine.release("a")
    engine.release("unknown")


async def test_text_model_rejects_images(engine):
    seen = SeenImage(np.zeros((28, 28, 3), np.uint8), PixelFormat(14, 2, 2, 1 / 255, (0.5,) * 3, (0.5,) * 3))
    with pytest.raises(EngineError, match="no vision tower"):
        await engine.generate([1, 2], GREEDY, trajectory_id="a", images=[PlacedImage(seen, 0)])


async def test_mismatched_weights_are_named_and_nothing_changes(engine, model):
    before = await engine.generate([1, 2, 3], GREEDY, trajectory_id="a")
    weights = {name: torch.zeros_like(tensor) for name, tensor in model.named_parameters()}
    with pytest.raises(EngineError, match=r"does not have: nonsense\.weight"):
        await engine.update_weights(TensorWeights([*weights.items(), ("nonsense.weight", torch.zeros(1))]), 1)
    with pytest.raises(EngineError, match=r"model\.norm\.weight \(3,\) instead of \(64,\)"):
        await engine.update_weights(TensorWeights({**weights, "model.norm.weight": torch.zeros(3)}.items()), 1)
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(EngineError, match=r"lack model\.layers\.1\.mlp\.up_proj\.weight"):
        await engine.update_weights(TensorWeights(weights.items()), 1)
    assert engine.policy_version == 0
    assert (await engine.generate([1, 2, 3], GREEDY, trajectory_id="b")).ids == before.ids


async def test_close_ends_running_turns_and_leaves_no_process(engine):
    children = [child for child in psutil.Process().children(recursive=True) if not _is_of_others(child)]
    assert children
    assert _socket_folders()
    running = [
        asyncio.create_task(engine.generate([1, 2], SamplingParams(max_tokens=400), trajectory_id=str(i)))
        for i in range(20)
    ]
    await asyncio.sleep(0.2)
    await engine.close()
    for got in await asyncio.gather(*running):
        assert got.finish_reason is FinishReason.ABORT
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([1], GREEDY, trajectory_id="a")
    gc.collect()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    assert not _socket_folders()


def _is_of_others(process):
    """Tell whether a child is Python's own, or a service that an earlier test of this process uses."""
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return any(word in command for word in ("resource_tracker", "forkserver", "warm.py", "podman", "docker"))


def _socket_folders():
    return list(Path(tempfile.gettempdir()).glob(f"agentloop-vllm-*-{os.getpid()}-*"))
