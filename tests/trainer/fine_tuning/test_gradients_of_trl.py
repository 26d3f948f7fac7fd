"""The gradients of `agentloop sft` and `agentloop dpo` are those of TRL's trainers on the same batch."""

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from agentloop.api.recipe import load_fine_tuning_config
from agentloop.trainer.fine_tuning.train import FineTuning
from agentloop.trainer.run.learners import create

pytestmark = pytest.mark.slow

QUIET = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "max_length": None}
READABLE = ("learner.lr=1.0", "learner.eps=1.0", "learner.grad_clip=null", "batch_size=12")
"""AdamW's first update is then g / (|g| + 1), from which the gradient g follows."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory, sums_model):
    """A reference that differs from the model, else all margins are 0."""
    folder = tmp_path_factory.mktemp("reference")
    model = AutoModelForCausalLM.from_pretrained(sums_model, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(sums_model).save_pretrained(folder)
    return folder


def our_gradients(answers, method, *overrides):
    """Return loss, gradients by name, and the trained token streams."""
    config = load_fine_tuning_config(str(answers), [*READABLE, *overrides], method)
    run = FineTuning.load(config, answers / "run")
    learner = create(run.learner)
    batch = run.train.batch(range(len(run.train)))
    loss = learner.step(batch)["loss"]
    learner.save_hf(answers / "stepped")
    before = load_file(answers / "model" / "model.safetensors")
    after = load_file(answers / "stepped" / "model.safetensors")
    updates = {name: (tensor - after[name]).double() for name, tensor in before.items()}
    return loss, {name: update / (1 - update.abs()) for name, update in updates.items()}, batch.samples


def assert_equal(ours, trainer, batch):
    """Compare loss and gradients with those of a trainer of TRL on a batch that its collator made."""
    loss, gradients, _ = ours
    model = trainer.model.train()
    their_loss = trainer.compute_loss(model, batch)
    their_loss.backward()
    assert loss == pytest.approx(their_loss.item(), abs=1e-5)
    found = dict(model.named_parameters())
    assert max(parameter.grad.abs().max() for parameter in found.values()) > 0.01
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, found[name].grad.double(), rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_sft(answers, tmp_path):
    ours = our_gradients(answers, "sft")
    model = AutoModelForCausalLM.from_pretrained(answers / "model", dtype=torch.float32)
    rows = [{"input_ids": s.token_ids.tolist(), "completion_mask": s.loss_mask.astype(int).tolist()} for s in ours[2]]
    tokenizer = AutoTokenizer.from_pretrained(answers / "model")
    arguments = SFTConfig(output_dir=str(tmp_path / "trl"), completion_only_loss=True, **QUIET)
    trainer = SFTTrainer(model, arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    assert_equal(ours, trainer, trainer.data_collator([dict(row) for row in trainer.train_dataset]))


def test_dpo(answers, reference, tmp_path):
    small = "learner.token_budget=64"  # the answers of a pair are then in different micro-batches
    ours = our_gradients(answers, "dpo", "learner.loss_options={beta: 0.3}", f"learner.reference={reference}", small)
    models = [AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in (answers / "model", reference)]
    rows = []
    for chosen, rejected in zip(ours[2][::2], ours[2][1::2], strict=True):
        split = {"chosen_ids": chosen, "rejected_ids": rejected}
        answer = {name: sample.token_ids[sample.loss_mask].tolist() for name, sample in split.items()}
        rows.append({"prompt_ids": chosen.token_ids[~chosen.loss_mask].tolist(), **answer})
    arguments = DPOConfig(output_dir=str(tmp_path / "trl"), beta=0.3, **QUIET)
    trainer = DPOTrainer(
        models[0],
        models[1],
        arguments,
        train_dataset=Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}]),
        processing_class=AutoTokenizer.from_pretrained(answers / "model"),
    )
    assert_equal(ours, trainer, trainer.data_collator(rows))
