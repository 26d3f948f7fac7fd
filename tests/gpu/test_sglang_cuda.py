"""`SglangEngine` with SGLang itself (0.5.17) and a tiny Qwen3 of random weights. One server for the whole file."""

import asyncio
import copy

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentloop.engines.base import FinishReason, SamplingParams
from agentloop.engines.sglang.engine import SglangEngine
from agentloop.errors import EngineError
from agentloop.weights.shelf import WeightShelf
from agentloop.weights.tensors import TensorWeights

pytestmark = [pytest.mark.gpu, pytest.mark.asyncio(loop_scope="module")]

VOCABULARY = 128
LONGEST = 4096
EOS = 3
TOLERANCE, MEAN_TOLERANCE = 0.25, 0.05
"""bfloat16 on both sides, by other kernels: of the worst of the tokens, and of all on average."""
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
MEMORY = 0.8
SERVER_ARGS = {
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "max_total_tokens": 300_000,
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=LONGEST, tie_word_embeddings=False,
        initializer_range=0.2, bos_token_id=None, eos_token_id=EOS,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).to(torch.bfloat16).eval()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sglang") / "tiny"
    model.save_pretrained(folder)
    engine = SglangEngine(folder, gpu_memory_utilization=MEMORY, max_num_seqs=64, server_args=SERVER_ARGS)
    await engine.start()
    yield engine
    await engine.close()


def parrot(model, token):
    """The model with other weights: it says `token`, whatever it reads."""
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


def prompts_of(count, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(4, VOCABULARY, rng.integers(3, 80)).tolist() for _ in range(count)]


async def turns(engine, prompts, params):
    return await asyncio.gather(
        *(engine.generate(prompt, params, trajectory_id=f"t{i}") for i, prompt in enumerate(prompts))
    )


@pytest.mark.parametrize("temperature", [0.0, 0.7])
async def test_turns_are_those_of_the_model(engine, model, temperature):
    assert engine.max_model_len == LONGEST
    prompts = prompts_of(24)
    params = SamplingParams(max_tokens=12, temperature=temperature)
    differences = []
    for prompt, got in zip(prompts, await turns(engine, prompts, params), strict=True):
        expected = reference(model, prompt, got.ids, temperature or 1.0)
        chosen = expected[range(len(got.ids)), list(got.ids)]
        np.testing.assert_allclose(got.logprobs, chosen, atol=TOLERANCE)
        differences += np.abs(np.asarray(got.logprobs) - chosen.numpy()).tolist()
        if temperature == 0:
            assert torch.all(expected.max(-1).values - chosen < TOLERANCE)
        assert (got.finish_reason, list(got.versions)) == (FinishReason.LENGTH, [0] * 12)
    print(f"log-probabilities differ by {np.mean(differences):.4f} on average, {max(differences):.4f} at most")
    assert np.mean(differences) < MEAN_TOLERANCE


async def test_stop_tokens_end_a_turn_and_the_models_eos_does_not(engine, model):
    await engine.update_weights(TensorWeights(parrot(model, 50)), 0)
    got = await engine.generate([7, 8], SamplingParams(max_tokens=9, stop_token_ids=(50, 9)), trajectory_id="a")
    assert (list(got.ids), got.finish_reason, len(got.logprobs)) == ([50], FinishReason.STOP, 1)
    await engine.update_weights(TensorWeights(parrot(model, EOS)), 0)
    got = await engine.generate([7, 8], SamplingParams(max_tokens=5, temperature=0.0), trajectory_id="a")
    assert (list(got.ids), got.finish_reason) == ([EOS] * 5, FinishReason.LENGTH)
    await engine.update_weights(TensorWeights(list(model.named_parameters())), 0)


async def test_every_token_knows_the_weights_that_sampled_it(engine, model):
    """Version v says token v: the ids themselves tell which weights sampled them."""
    await engine.update_weights(TensorWeights(parrot(model, 20)), 20)
    params = SamplingParams(max_tokens=4000, temperature=0.0, stop_token_ids=(26,))
    running = [
        asyncio.create_task(engine.generate(p, params, trajectory_id=str(i))) for i, p in enumerate(prompts_of(90))
    ]
    for version in range(21, 27):
        await asyncio.sleep(0.2)
        await engine.update_weights(TensorWeights(parrot(model, version)), version)
        assert engine.policy_version == version
    results = await asyncio.gather(*running)
    for got in results:
        assert got.ids == got.versions
        assert got.finish_reason is FinishReason.STOP
    assert max(len(set(got.versions)) for got in results) > 2
    await engine.update_weights(TensorWeights(list(model.named_parameters())), 0)


async def test_pause_stops_sampling_until_resume(engine, model):
    await engine.update_weights(TensorWeights(parrot(model, 9)), 0)
    params = SamplingParams(max_tokens=4000, stop_token_ids=(5,))
    running = asyncio.create_task(engine.generate([7, 8], params, trajectory_id="a"))
    await asyncio.sleep(0.2)
    await engine.pause()
    await engine.update_weights(TensorWeights(parrot(model, 5)), 5)
    assert not running.done()
    await engine.resume()
    got = await running
    assert list(got.ids) == [9] * (len(got.ids) - 1) + [5]
    assert list(got.versions) == [0] * (len(got.ids) - 1) + [5]
    await engine.update_weights(TensorWeights(list(model.named_parameters())), 0)


async def test_weights_that_do_not_fit_change_nothing(engine, model):
    before = await engine.generate([7, 8, 9], GREEDY, trajectory_id="a")
    lacking = [each for each in model.named_parameters() if each[0] != "model.norm.weight"]
    with pytest.raises(EngineError, match=r"lack model\.norm\.weight"):
        await engine.update_weights(TensorWeights(lacking), 1)
    assert (await engine.generate([7, 8, 9], GREEDY, trajectory_id="b")).ids == before.ids


async def test_the_second_update_is_copies_on_the_gpu(engine, model):
    shelf = WeightShelf()
    on_gpu = copy.deepcopy(model).cuda()
    for token in (30, 31):
        await engine.update_weights(shelf.put(parrot(on_gpu, token)), token)
        got = await engine.generate([7, 8], GREEDY, trajectory_id="a")
        assert list(got.ids) == list(got.versions) == [token] * 12
    assert engine.loads_by == "copies"
    await engine.update_weights(TensorWeights(list(model.named_parameters())), 0)


async def test_an_engine_that_sleeps_leaves_its_memory_to_others(model, tmp_path):
    model.save_pretrained(tmp_path / "tiny")
    large = SERVER_ARGS | {"max_total_tokens": 16_000_000}  # 8 GiB
    engine = SglangEngine(tmp_path / "tiny", sleeps=True, gpu_memory_utilization=MEMORY, server_args=large)
    await engine.start()
    try:
        before = await engine.generate([7, 8, 9], GREEDY, trajectory_id="a")
        free, _ = torch.cuda.mem_get_info()
        await engine.sleep()
        assert torch.cuda.mem_get_info()[0] - free > 6 << 30
        turn = asyncio.create_task(engine.generate([7, 8, 9], GREEDY, trajectory_id="b"))
        await engine.wake()
        assert (await turn).ids == before.ids  # the weights are what they were
        await engine.sleep()
        await engine.update_weights(TensorWeights(parrot(model, 5)), 5)
        await engine.wake()
        assert list((await engine.generate([7, 8, 9], GREEDY, trajectory_id="c")).ids) == [5] * 12
    finally:
        await engine.close()


async def test_cancelling_ends_the_request(engine):
    task = asyncio.create_task(engine.generate([7, 8], SamplingParams(max_tokens=4000), trajectory_id="a"))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len((await engine.generate([7, 8], GREEDY, trajectory_id="a")).ids) == 12


async def test_close_ends_what_runs_and_leaves_no_process(engine):
    children = {child: child.name() for child in psutil.Process().children(recursive=True)}
    running = [
        asyncio.create_task(engine.generate([7, 8], SamplingParams(max_tokens=4000), trajectory_id=str(i)))
        for i in range(20)
    ]
    await asyncio.sleep(0.2)
    await engine.close()
    for got in await asyncio.gather(*running):
        assert got.finish_reason is FinishReason.ABORT
    _, alive = psutil.wait_procs([child for child, name in children.items() if "tracker" not in name], timeout=20)
    assert alive == []
