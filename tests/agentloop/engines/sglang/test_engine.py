"""`SglangEngine` against a server that speaks SGLang's protocol; tests/gpu has SGLang itself."""

import asyncio
import re
import sys
import tempfile
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from agentloop import engines
from agentloop.engines.base import EngineDead, FinishReason, SamplingParams
from agentloop.engines.sglang import client as sglang_client
from agentloop.engines.sglang.client import SglangClient
from agentloop.engines.sglang.engine import SglangEngine
from agentloop.engines.sglang.server import SglangServer
from agentloop.engines.token_listeners import listening
from agentloop.errors import EngineError, UserError
from agentloop.registry.named_objects import load_object
from agentloop.types.grammar import Grammar
from agentloop.weights.buckets import HostHandle
from agentloop.weights.shelf import CannotMap, Overwritten, SharedWeights, WeightShelf
from agentloop.weights.tensors import TensorWeights
from tests.support.small_models import save_small_model

pytestmark = pytest.mark.slow

SERVER = str(Path(__file__).with_name("sglang_protocol.py"))
VOCABULARY = 64
LONGEST = 100_000
EOS = 3
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@pytest.fixture(scope="module")
def weights():
    generator = torch.Generator().manual_seed(0)
    return {
        "embed.weight": torch.randn(VOCABULARY, 16, generator=generator),
        "head.weight": torch.randn(VOCABULARY, 16, generator=generator),
    }


@pytest.fixture(scope="module")
def folder(weights, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture
async def make(folder):
    """A started engine, by default with a server of its own."""
    started = []

    async def start(**options):
        engine = SglangEngine(folder, **{"command": [sys.executable, SERVER], **options})
        started.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in started:
        await engine.close()


def parrot(token):
    """Return weights with which the model always samples `token`."""
    embed, head = torch.ones(VOCABULARY, 16), torch.zeros(VOCABULARY, 16)
    head[token] = 10.0
    return {"embed.weight": embed, "head.weight": head}.items()


def reference(weights, prompt, ids, temperature=1.0):
    """Return log-probabilities of the tokens after a prompt, [num_tokens, vocabulary]."""
    model = load_object(f"{SERVER}:log_softmax_of", "reference")
    arrays = {name: tensor.numpy() for name, tensor in weights.items()}
    return np.stack([model(arrays, [*prompt, *ids[:i]], temperature) for i in range(len(ids))])


def prompts_of(count, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(4, VOCABULARY, rng.integers(3, 20)).tolist() for _ in range(count)]


async def turns(engine, prompts, params):
    return await asyncio.gather(
        *(engine.generate(prompt, params, trajectory_id=f"t{i}") for i, prompt in enumerate(prompts))
    )


async def told(engine):
    async with httpx.AsyncClient() as client:
        return (await client.get(f"{engine.url}/asked")).json()


async def until_running(engine, count):
    while len((await told(engine))["running"]) < count:  # noqa: ASYNC110 (another process)
        await asyncio.sleep(0.01)


async def test_turns_match_the_model(make, weights):
    engine = await make()
    assert engine.max_model_len == LONGEST
    prompts = prompts_of(6)
    for prompt, got in zip(prompts, await turns(engine, prompts, GREEDY), strict=True):
        expected = reference(weights, prompt, got.ids)
        assert list(got.ids) == expected.argmax(-1).tolist()
        np.testing.assert_allclose(got.logprobs, expected.max(-1), atol=1e-5)
        assert (got.finish_reason, list(got.versions)) == (FinishReason.LENGTH, [0] * 8)
    for prompt in prompts:
        got = await engine.generate(prompt, SamplingParams(max_tokens=5, temperature=0.7, top_k=9), trajectory_id="a")
        expected = reference(weights, prompt, got.ids, 0.7)[range(5), list(got.ids)]
        np.testing.assert_allclose(got.logprobs, expected, atol=1e-5)


async def test_stop_tokens_and_length_end_a_turn(make):
    engine = await make()
    prompt = prompts_of(1)[0]
    free = await engine.generate(prompt, SamplingParams(max_tokens=12, seed=5), trajectory_id="a")
    stop = free.ids[6]
    first = list(free.ids).index(stop)
    params = SamplingParams(max_tokens=12, seed=5, stop_token_ids=(1, stop))
    got = await engine.generate(prompt, params, trajectory_id="b")
    assert (list(got.ids), got.finish_reason) == (list(free.ids[: first + 1]), FinishReason.STOP)
    last = SamplingParams(max_tokens=first + 1, seed=5, stop_token_ids=(stop,))
    got = await engine.generate(prompt, last, trajectory_id="b")
    assert got.finish_reason is FinishReason.STOP  # which SGLang reports as truncated
    short = await make(max_model_len=20)
    full = await short.generate([5] * 16, SamplingParams(max_tokens=30), trajectory_id="c")
    assert (len(full.ids), full.finish_reason) == (4, FinishReason.LENGTH)
    with pytest.raises(EngineError, match="20 tokens"):
        await short.generate([5] * 20, params, trajectory_id="d")


async def test_stop_strings_end_a_turn(make, folder):
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    engine = await make()
    prompt = prompts_of(1)[0]
    free = await engine.generate(prompt, SamplingParams(max_tokens=12, seed=5), trajectory_id="a")
    end = next(i for i in range(3, 12) if free.ids[i] not in free.ids[:i])
    params = SamplingParams(max_tokens=12, seed=5, stop_strings=(f"w{free.ids[end]}",))
    got = await engine.generate(prompt, params, trajectory_id="b")
    first = next(i for i in range(12) if f"w{free.ids[i]}".startswith(f"w{free.ids[end]}"))
    assert (list(got.ids), got.finish_reason) == (list(free.ids[: first + 1]), FinishReason.STOP)
    assert list(got.logprobs) == list(free.logprobs[: first + 1])


async def test_eos_token_does_not_stop_a_turn_unless_requested(make):
    engine = await make()
    await engine.update_weights(TensorWeights(parrot(EOS)), 1)
    got = await engine.generate([7, 8], SamplingParams(max_tokens=5, temperature=0.0), trajectory_id="a")
    assert (list(got.ids), got.finish_reason, len(got.logprobs)) == ([EOS] * 5, FinishReason.LENGTH, 5)
    assert len((await told(engine))["asked"]) == 5  # SGLang stopped each time


async def test_every_token_carries_its_weight_version(make):
    """Weights of version v sample token v, so the ids show which weights sampled them."""
    engine = await make()
    await engine.update_weights(TensorWeights(parrot(20)), 20)
    params = SamplingParams(max_tokens=90_000, temperature=0.0, stop_token_ids=(24,))
    running = [asyncio.create_task(engine.generate([7, 8], params, trajectory_id=f"t{i}")) for i in range(4)]
    for version in range(21, 25):
        await until_running(engine, 4)
        await engine.update_weights(TensorWeights(parrot(version)), version)
        assert engine.policy_version == version
    results = await asyncio.gather(*running)
    for got in results:
        assert got.ids == got.versions
        assert (got.finish_reason, got.ids[-1], len(got.logprobs)) == (FinishReason.STOP, 24, len(got.ids))
        assert set(got.versions) == {20, 21, 22, 23, 24}
    late = await engine.generate([7], GREEDY, trajectory_id="z")
    assert set(late.ids) == {24}
    asked = (await told(engine))["asked"]
    assert asked[-1]["extra_key"] == "5"  # five updates: nothing of older weights is used
    assert {request["extra_key"] for request in asked[:-1]} == {"1"}  # running turns keep what they have


async def test_pause_stops_sampling_until_resume(make):
    engine = await make()
    await engine.update_weights(TensorWeights(parrot(9)), 0)
    params = SamplingParams(max_tokens=90_000, stop_token_ids=(5,))
    running = asyncio.create_task(engine.generate([7, 8], params, trajectory_id="a"))
    await until_running(engine, 1)
    await engine.pause()
    await engine.pause()
    assert (await told(engine))["running"] == []
    late = asyncio.create_task(engine.generate([7, 8], GREEDY, trajectory_id="b"))
    await engine.update_weights(TensorWeights(parrot(5)), 5)  # stays paused
    assert (await told(engine))["running"] == []
    assert not running.done()
    assert not late.done()
    await engine.resume()
    got = await running
    before = len(got.ids) - 1
    assert list(got.ids) == [9] * before + [5]
    assert list(got.versions) == [0] * before + [5]
    assert set((await late).versions) == {5}


async def test_cancelled_turn_aborts_its_request(make):
    engine = await make()
    task = asyncio.create_task(engine.generate([7, 8], SamplingParams(max_tokens=90_000), trajectory_id="a"))
    await until_running(engine, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while (await told(engine))["running"]:  # noqa: ASYNC110 (another process)
        await asyncio.sleep(0.01)
    assert len((await engine.generate([7, 8], GREEDY, trajectory_id="a")).ids) == 8
    engine.release("a")


async def test_mismatched_weights_are_named_and_nothing_changes(make, weights):
    engine = await make()
    with pytest.raises(EngineError, match=r"does not have: nonsense\.weight"):
        await engine.update_weights(TensorWeights([*weights.items(), ("nonsense.weight", torch.zeros(1))]), 1)
    with pytest.raises(EngineError, match=r"lack head\.weight"):
        await engine.update_weights(TensorWeights([("embed.weight", weights["embed.weight"])]), 1)
    assert engine.policy_version == 0
    assert len((await engine.generate([7, 8], GREEDY, trajectory_id="a")).ids) == 8


async def test_weights_use_shared_memory_and_are_copied_after_the_first_update(make):
    engine = await make()
    shelf = WeightShelf()
    ways = []
    for version in (5, 6, 7):
        await engine.update_weights(shelf.put(parrot(version)), version)
        ways.append(engine.loads_by)
        assert list((await engine.generate([7, 8], GREEDY, trajectory_id="a")).ids) == [version] * 8
    assert ways == ["loader", "copies", "copies"]


@pytest.mark.parametrize("server_args", [{}, {"incremental_streaming_output": True}])
async def test_a_listener_gets_the_tokens_of_a_turn_over_a_weight_update(make, server_args):
    engine = await make(server_args=server_args)
    params = SamplingParams(max_tokens=90_000, temperature=0.0, stop_token_ids=(5,))
    await engine.update_weights(TensorWeights(parrot(9)), 1)
    heard, has_begun = [], asyncio.Event()

    def hear(ids):
        heard.extend(ids)
        has_begun.set()

    with listening(hear):
        running = asyncio.create_task(engine.generate([7, 8], params, trajectory_id="a"))
    await has_begun.wait()
    assert not running.done()
    await engine.update_weights(TensorWeights(parrot(5)), 2)
    turn = await running
    assert heard == list(turn.ids)
    assert list(turn.ids) == [9] * (len(turn.ids) - 1) + [5]
    assert list(turn.versions) == [1] * (len(turn.ids) - 1) + [2]
    alone = await engine.generate([7, 8], GREEDY, trajectory_id="b")
    with listening(lambda ids: None):
        assert await engine.generate([7, 8], GREEDY, trajectory_id="c") == alone


async def test_an_error_within_a_stream_is_that_of_the_server(make):
    engine = await make()
    with listening(lambda ids: None), pytest.raises(EngineError, match="13 tokens are too few"):
        await engine.generate([7, 8], SamplingParams(max_tokens=13), trajectory_id="a")


async def test_a_turn_of_the_server_cannot_be_constrained(make):
    engine = await make()
    with pytest.raises(UserError, match=r"sglang cannot constrain turns.*Use the engine vllm or hf"):
        await engine.check_grammar(Grammar("{}", (EOS,)))


async def test_unmappable_weights_raise(make, caplog):
    engine = await make()
    shelf = WeightShelf()
    shared = shelf.put(parrot(5))
    elsewhere = shared.parts[0]._replace(buckets=(HostHandle(0, 0, 8),))
    await engine.update_weights(SharedWeights((elsewhere,), shared.places), 5)  # of this process: it copies them
    assert "through the memory of the host from now on" in caplog.text
    assert list((await engine.generate([7, 8], GREEDY, trajectory_id="a")).ids) == [5] * 8
    part = shared.parts[0]._replace(shelf="of another process", buckets=(HostHandle(0, 0, 8),))
    with pytest.raises(CannotMap):
        await engine.update_weights(SharedWeights((part,), shared.places), 6)
    got = await engine.generate([7, 8], GREEDY, trajectory_id="a")
    assert (list(got.ids), set(got.versions)) == ([5] * 8, {5})


async def test_overwritten_weights_stop_the_engine_until_the_next_update(make, weights):
    engine = await make()
    shelf = WeightShelf()
    old = shelf.put(weights.items())
    shelf.put(parrot(5))
    with pytest.raises(Overwritten):
        await engine.update_weights(old, 1)
    with pytest.raises(EngineError, match="were overwritten while SGLang loaded them"):
        await engine.generate([7, 8], GREEDY, trajectory_id="a")
    await engine.update_weights(TensorWeights(weights.items()), 2)
    assert set((await engine.generate([7, 8], GREEDY, trajectory_id="a")).versions) == {2}


async def test_weights_of_experts_arrive_as_in_the_checkpoint(tmp_path, monkeypatch):
    save_small_model("qwen3_moe", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    engine = SglangEngine(tmp_path, command=[sys.executable, SERVER])
    loaded = {}
    send = SglangClient.load_folder

    async def load(client, folder, version):
        loaded.update(load_file(folder / "model.safetensors"))
        await send(client, folder, version)

    monkeypatch.setattr(SglangClient, "load_folder", load)
    try:
        await engine.start()
        await engine.update_weights(TensorWeights(list(model.named_parameters())), 1)
    finally:
        await engine.close()
    assert engine.loads_by == "file"
    expected = load_file(tmp_path / "model.safetensors")
    assert "model.layers.0.mlp.experts.0.gate_proj.weight" in expected
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.items())


async def test_model_with_extra_state_loads_weights_from_a_file(make, caplog):
    engine = await make(server_args={"quantized": True})
    for version in (5, 6):
        await engine.update_weights(TensorWeights(parrot(version)), version)
        assert engine.loads_by == "file"
        assert list((await engine.generate([7, 8], GREEDY, trajectory_id="a")).ids) == [version] * 8
    assert caplog.text.count("New weights go through files from now on") == 1


async def test_unloadable_files_stop_the_engine_until_the_next_update(make, weights, tmp_path, monkeypatch):
    owner = await make(server_args={"api_key": "k"})
    monkeypatch.setenv("SGLANG_KEY", "k")
    engine = await make(url=owner.url, api_key_variable="SGLANG_KEY", command=None, weights_folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("agentloop.engines.sglang.weights.write_weights", lambda *args: None)
        with pytest.raises(EngineError, match="Cannot find any model weights"):
            await engine.update_weights(TensorWeights(weights.items()), 1)
    with pytest.raises(EngineError, match="Cannot find any model weights"):
        await engine.generate([7, 8], GREEDY, trajectory_id="a")
    await engine.update_weights(TensorWeights(weights.items()), 2)
    assert set((await engine.generate([7, 8], GREEDY, trajectory_id="a")).versions) == {2}
    assert list(tmp_path.glob("agentloop-weights-*")) == []


async def test_sleeping_engine_frees_memory_and_its_turns_wait(make, weights):
    engine = await make(sleeps=True)
    await engine.update_weights(TensorWeights(parrot(9)), 0)
    params = SamplingParams(max_tokens=90_000, stop_token_ids=(5,))
    running = asyncio.create_task(engine.generate([7, 8], params, trajectory_id="a"))
    await until_running(engine, 1)
    await engine.sleep()
    assert await told(engine) | {"asked": []} == {"asked": [], "running": [], "away": ["kv_cache", "weights"]}
    await engine.update_weights(TensorWeights(parrot(5)), 5)
    assert (await told(engine))["away"] == ["kv_cache"]
    assert not running.done()
    await engine.wake()
    got = await running
    assert list(got.versions) == [0] * (len(got.ids) - 1) + [5]
    await engine.sleep()
    await engine.pause()
    await engine.wake()
    late = asyncio.create_task(engine.generate([7, 8], GREEDY, trajectory_id="b"))
    assert (await told(engine)) | {"asked": []} == {"asked": [], "running": [], "away": []}
    assert not late.done()
    await engine.wake()  # as it was: paused
    assert not late.done()
    await engine.resume()
    assert set((await late).ids) == {5}


async def test_close_ends_running_turns_and_leaves_no_process(make):
    before = set(psutil.Process().children(recursive=True))  # multiprocessing keeps one of its own after other tests
    engine = await make()
    children = set(psutil.Process().children(recursive=True)) - before
    assert children
    running = [
        asyncio.create_task(engine.generate([7, 8], SamplingParams(max_tokens=90_000), trajectory_id=str(i)))
        for i in range(3)
    ]
    await until_running(engine, 3)
    await engine.close()
    for got in await asyncio.gather(*running):
        assert got.finish_reason is FinishReason.ABORT
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([7], GREEDY, trajectory_id="a")
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


async def test_dead_server_returns_its_partial_turns(make):
    engine = await make()
    running = asyncio.create_task(engine.generate([7, 8], SamplingParams(max_tokens=90_000), trajectory_id="a"))
    await until_running(engine, 1)
    await engine.update_weights(TensorWeights(parrot(9)), 1)
    await until_running(engine, 1)
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.TransportError):
            await client.post(f"{engine.url}/crash")
    with pytest.raises(EngineDead, match="is gone") as caught:
        await running
    assert set(caught.value.sampled.versions) <= {0}  # the part before the update; the rest is lost
    while True:
        try:
            await engine.generate([7, 8], GREEDY, trajectory_id="b")
        except EngineDead as death:
            if "ended with status 3" in str(death):
                break
        await asyncio.sleep(0.01)


async def test_external_server_is_used_and_left_running(make, folder, monkeypatch):
    owner = await make(server_args={"api_key": "k"})
    monkeypatch.setenv("SGLANG_KEY", "k")
    server = {"url": owner.url, "api_key_variable": "SGLANG_KEY"}
    await owner.update_weights(TensorWeights(parrot(11)), 1)  # it now reports another path with the same name
    guest = SglangEngine(folder, **server)
    await guest.start()
    assert list((await guest.generate([7, 8], GREEDY, trajectory_id="a")).ids) == [11] * 8
    await guest.close()
    assert len((await owner.generate([7, 8], GREEDY, trajectory_id="a")).ids) == 8
    other = folder.parent / "other"
    other.mkdir()
    with pytest.raises(UserError, match=re.escape(f"/tiny', but the run trains '{other}'")):
        await SglangEngine(other, **server).start()
    with pytest.raises(UserError, match=f"max_model_len=200000 is above the context of {LONGEST}"):
        await SglangEngine(folder, **server, max_model_len=200_000).start()
    monkeypatch.setattr(sglang_client, "NEEDED", (*sglang_client.NEEDED, "/pause"))
    with pytest.raises(UserError, match=r"\(0\.5\.17\) lacks routes that the sglang engine uses: /pause"):
        await SglangEngine(folder, **server).start()
    monkeypatch.setenv("SGLANG_KEY", "another")
    with pytest.raises(UserError, match="refuses the key"):
        await SglangEngine(folder, **server).start()
    with pytest.raises(UserError, match=r"NO_KEY.* is not set"):
        SglangEngine(folder, url=owner.url, api_key_variable="NO_KEY")


async def test_a_server_answers_only_requests_with_its_random_key(make, weights, monkeypatch, tmp_path):
    """Check every route, and that the key is in no command line and no file that stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engines = [await make(), await make()]
    keys = [engine.api_key for engine in engines]
    assert min(map(len, keys)) >= 32
    assert len(set(keys)) == 2
    async with httpx.AsyncClient(base_url=engines[0].url) as client:
        for route in (*sglang_client.NEEDED, "/release_memory_occupation", "/resume_memory_occupation"):
            for headers in ({}, {"authorization": f"Bearer {keys[1]}"}):
                for method in ("GET", "POST"):
                    assert (await client.request(method, route, headers=headers, content=b"{}")).status_code == 401
    commands = [word for process in psutil.Process().children(recursive=True) for word in process.cmdline()]
    assert not [word for word in commands if any(key in word for key in keys)]
    assert list(tmp_path.glob("agentloop-sglang-*")) == []
    await engines[0].update_weights(TensorWeights(parrot(9)), 1)
    assert list((await engines[0].generate([7, 8], GREEDY, trajectory_id="a")).ids) == [9] * 8


async def test_the_file_with_the_key_is_private_until_it_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = SglangServer({}, ["true"])
    await server.start()
    (path,) = tmp_path.glob("agentloop-sglang-*")
    assert (path.stat().st_mode & 0o777, server.key in path.read_text()) == (0o600, True)
    await server.stop()
    assert not path.exists()
    with pytest.raises(UserError, match=r"server_args\.config"):
        SglangEngine(tmp_path, server_args={"config": "mine.yaml"})


async def test_failed_starts_raise_user_error(make, folder):
    with pytest.raises(UserError, match=r"No SGLang server answers at http://127\.0\.0\.1:1 \(ConnectError"):
        await SglangEngine(folder, url="http://127.0.0.1:1").start()
    with pytest.raises(UserError, match="There is no model folder '/no/such'"):
        await SglangEngine("/no/such", url="http://127.0.0.1:1").start()
    with pytest.raises(UserError, match=r"cannot start with the model .* ended with status 1: no GPU here"):
        await make(server_args={"fail": "no GPU here"})
    with pytest.raises(UserError, match="needs SGLang, which is not installed"):
        await engines.create("sglang", model=str(folder)).start()
    with pytest.raises(EngineError, match="was not started"):
        await SglangEngine(folder, url="http://127.0.0.1:1").generate([1], GREEDY, trajectory_id="a")
