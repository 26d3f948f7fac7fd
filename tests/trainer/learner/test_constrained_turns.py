"""Turns that an engine samples with a grammar have the same log-probabilities in the learner."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentloop import engines
from agentloop.config.learner import LearnerConfig
from agentloop.engines.base import SamplingParams
from agentloop.grammars.of_model import ModelGrammars
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.run.learners import create
from agentloop.types.grammar import Grammar
from agentloop.types.trajectory import SegmentKind, Trajectory
from agentloop.types.trajectory_io import read_jsonl, write_jsonl
from tests.support.small_models import save_small_model

CHECKPOINT = Path(__file__).parents[3] / "recipes" / "tiny" / "checkpoint"
TEMPERATURE = 1.3
SCHEMA = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "maxLength": 9},
        "numbers": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "maxItems": 3},
    },
    "required": ["word", "numbers"],
}


def form(schema):
    structure = {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 2}
    return json.dumps({"type": "structural_tag", "format": structure})


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(CHECKPOINT)


async def play(tokenizer, engine):
    """Play four episodes of two turns: a constrained one, and one without a grammar."""
    stop = (tokenizer.eos_token_id,)
    grammar = Grammar(form(SCHEMA), stop)
    played = []
    for number in range(4):
        prompt = "<|im_start|>user\nA word and numbers.<|im_end|>\n<|im_start|>assistant\n"
        trajectory = Trajectory(f"t{number}")
        trajectory.append(SegmentKind.PROMPT, tokenizer.encode(prompt, add_special_tokens=False))
        for turn, form_of_turn in enumerate((grammar, None)):
            params = SamplingParams(
                max_tokens=60,
                temperature=TEMPERATURE,
                seed=number,
                stop_token_ids=stop,
                grammar=form_of_turn,
                routed_from=trajectory.num_routed,
            )
            found = await engine.generate(trajectory.ids, params, trajectory_id=trajectory.trajectory_id)
            trajectory.append(
                SegmentKind.SAMPLED, found.ids, logprobs=found.logprobs, versions=found.versions, grammar=form_of_turn
            )
            trajectory.add_routed(found.routed)
            if turn == 0:
                assert json.loads(tokenizer.decode(found.ids[:-1])).keys() == {"word", "numbers"}
                more = tokenizer.encode("\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
                trajectory.append(SegmentKind.OBSERVATION, more)
        played.append(trajectory)
    return played


@pytest.fixture(scope="module")
async def trajectories(tokenizer):
    engine = engines.create("hf", model=str(CHECKPOINT), dtype="float32", device="cpu", seed=0)
    await engine.start()
    played = await play(tokenizer, engine)
    await engine.close()
    return played


def samples_of(trajectories):
    advantages = [1.0, -0.5, 0.7, -1.2]
    return [Sample.from_trajectory(each, value) for each, value in zip(trajectories, advantages, strict=True)]


def config(model=CHECKPOINT, **options):
    values = {"lr": 1.0, "eps": 1.0, "grad_clip": None, "temperature": TEMPERATURE, **options}
    return LearnerConfig(model=str(model), device="cpu", **values)


def learner(model=CHECKPOINT, **options):
    return create(config(model, **options))


def plain_logprobs(model, sample, grammars):
    """Log-probabilities of a sample's tokens from masked logits, in plain torch."""
    ids = torch.from_numpy(sample.token_ids.astype(np.int64))
    logits = model(ids[None]).logits[0, :-1] / TEMPERATURE
    for turn in sample.constrained:
        masks = grammars.compiler.masks(turn.grammar, sample.token_ids[turn.start : turn.end].tolist())
        for place, bits in zip(masks.places, masks.bits, strict=True):
            allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: logits.shape[1]].astype(bool)
            position = turn.start + place - 1
            logits = logits.index_put(
                (torch.tensor(position),), logits[position].masked_fill(torch.from_numpy(~allowed), -torch.inf)
            )
    logprobs = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0]
    return logprobs[torch.from_numpy(sample.loss_mask[1:])]


def test_the_learner_computes_the_log_probabilities_of_the_engine(trajectories):
    samples = samples_of(trajectories)
    for sample, logprobs in zip(samples, learner().logprobs(samples), strict=True):
        np.testing.assert_allclose(logprobs, sample.logprobs[sample.loss_mask], atol=1e-4)


def test_without_its_grammar_a_turn_seems_to_be_sampled_by_another_policy(trajectories):
    samples = [replace(sample, constrained=()) for sample in samples_of(trajectories)]
    differences = [
        np.abs(found - sample.logprobs[sample.loss_mask]).max()
        for sample, found in zip(samples, learner().logprobs(samples), strict=True)
    ]
    assert min(differences) > 0.1


@pytest.mark.parametrize("loss", ["ppo", "gspo"])
def test_the_update_is_that_of_masked_logits_in_plain_torch(trajectories, loss):
    """The update of this optimizer is g / (|g| + 1): equal weights mean equal gradients."""
    samples = samples_of(trajectories)
    ours = learner(loss=loss, weight_decay=0.0)
    before = {name: tensor.clone() for name, tensor in ours.weights()}
    ours.step(TrainBatch(samples))
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    grammars = ModelGrammars(CHECKPOINT)
    total = sum(sample.num_sampled for sample in samples)
    objective = torch.zeros(())
    for sample in samples:
        logprobs = plain_logprobs(model, sample, grammars)
        old = torch.from_numpy(sample.logprobs[sample.loss_mask])
        ratio = (logprobs - old).mean().exp() if loss == "gspo" else (logprobs - old).exp()
        weight = 1 / len(samples) if loss == "gspo" else 1 / total
        objective = objective - (ratio * sample.advantage * weight).sum()
    objective.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, tensor in ours.weights():
        gradient = gradients[name]
        torch.testing.assert_close(before[name] - tensor, gradient / (gradient.abs() + 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"token_budget": 200}, {"mini_batches": 2}, {"share_prefixes": True}])
def test_packing_does_not_change_the_log_probabilities(trajectories, options):
    samples = samples_of(trajectories)
    pairs = zip(learner(**options).logprobs(samples), learner().logprobs(samples), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_tokens_that_are_too_old_lose_their_masks_with_their_loss(trajectories):
    sample = samples_of(trajectories)[0]
    versions = sample.versions.copy()
    first = np.flatnonzero(sample.loss_mask)[:4]
    versions[first] = -1
    young = replace(sample, versions=versions).since(0)
    whole, rest = learner().logprobs([sample, young])
    np.testing.assert_allclose(rest, whole[4:], atol=1e-5)


def test_a_trajectory_keeps_its_grammar_in_a_file(trajectories, tokenizer, tmp_path):
    write_jsonl(tmp_path / "turns.jsonl", trajectories)
    read = list(read_jsonl(tmp_path / "turns.jsonl"))
    assert next(read[0].sampled_segments()).grammar == Grammar(form(SCHEMA), (tokenizer.eos_token_id,))
    pairs = zip(learner().logprobs(samples_of(read)), learner().logprobs(samples_of(trajectories)), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
def test_a_teacher_scores_constrained_tokens_among_the_allowed_ones(trajectories, tmp_path, backend):
    teacher = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    with torch.no_grad():
        teacher.model.norm.weight.mul_(0.5)
    teacher.save_pretrained(tmp_path)
    for file in CHECKPOINT.glob("tokenizer*"):
        (tmp_path / file.name).symlink_to(file)
    samples, grammars = samples_of(trajectories), ModelGrammars(CHECKPOINT)
    found = learner(reference=str(tmp_path), backend=backend).reference_logprobs(samples)
    for sample, logprobs in zip(samples, found, strict=True):
        expected = plain_logprobs(teacher, sample, grammars).detach().numpy()
        np.testing.assert_allclose(logprobs, expected, atol=1e-4)


async def test_experts_are_replayed_in_constrained_turns(tokenizer, tmp_path):
    model = save_small_model("qwen3_moe", tmp_path, vocab_size=1152, max_position_embeddings=512)
    for file in CHECKPOINT.glob("tokenizer*"):
        (model / file.name).symlink_to(file)
    engine = engines.create("hf", model=str(model), dtype="float32", device="cpu", seed=0, routed_experts=True)
    await engine.start()
    samples = samples_of(await play(tokenizer, engine))
    await engine.close()
    assert all(sample.routed is not None for sample in samples)
    found = learner(model, router_replay=True).logprobs(samples)
    for sample, logprobs in zip(samples, found, strict=True):
        np.testing.assert_allclose(logprobs, sample.logprobs[sample.loss_mask], atol=1e-4)


def test_a_folder_without_a_tokenizer_is_named(trajectories, tmp_path):
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(CHECKPOINT / file)
    found = create(LearnerConfig(model=str(tmp_path), device="cpu"))
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        found.logprobs(samples_of(trajectories))
