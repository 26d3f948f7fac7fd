"""Runs on given answers: what they learn and write, resume, ranks, and what they refuse."""

import asyncio
import json

import pytest
import ray
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

import agentloop
from agentloop.api.recipe import load_fine_tuning_config
from agentloop.errors import UserError
from agentloop.trainer.fine_tuning.train import FineTuning, fine_tune
from agentloop.trainer.schedule.observers import Observer

pytestmark = pytest.mark.slow


def run(answers, name="run", *overrides, method="sft", observer=None):
    config = load_fine_tuning_config(str(answers), overrides, method)
    return asyncio.run(fine_tune(config, answers / name, observer))


def weights(folder):
    return load_file(folder.model / "model.safetensors")


def assert_same(one, other, **bounds):
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(other)[name], tensor, **bounds)


def test_a_run_lowers_the_held_out_loss_and_writes_what_every_run_writes(answers):
    folder = run(answers, "run", "eval.every=2", "run.steps=12")
    lines = folder.read_metrics()
    assert [line["step"] for line in lines] == list(range(13))
    losses = [line["eval/loss"] for line in lines if "eval/loss" in line]
    assert len(losses) == 7
    assert losses[-1] < losses[0] / 2
    assert all(line["learner/loss"] > 0 and line["learner/num_trajectories"] == 4 for line in lines[1:])
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["step_000010", "step_000012"]

    result = agentloop.load_run(folder.root)
    assert result.config.batch_size == 4
    first = result.trajectories(1)
    assert [message["role"] for message in first[0].messages] == ["user", "assistant"]
    assert result.export(answers / "exported", step=12)
    exported = load_file(answers / "exported" / "model.safetensors")
    assert all(torch.equal(exported[name], tensor) for name, tensor in weights(folder).items())


class _Stop(Observer):
    def on_step(self, step, metrics):
        if step == 3:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_an_interrupted_run_resumes_to_the_weights_of_an_uninterrupted_one(answers, method):
    schedule = ("learner.lr_schedule=cosine", "learner.warmup_updates=1", "run.steps=6")
    whole = run(answers, "whole", *schedule, method=method)
    with pytest.raises(KeyboardInterrupt):
        run(answers, "parts", *schedule, method=method, observer=_Stop())
    parts = run(answers, "parts", *schedule, method=method)
    assert_same(whole, parts, rtol=0, atol=0)

    def comparable(folder):
        return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in folder.read_metrics()]

    assert comparable(parts) == comparable(whole)


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_two_ranks_train_what_one_trains(answers, method):
    # Gradients of the common prompt of a DPO pair nearly cancel: with a small eps Adam enlarges what rounding leaves.
    one = run(answers, "one", "learner.eps=1e-3", method=method)
    two = run(answers, "two", "learner.eps=1e-3", "learner.ranks=2", method=method)
    assert not ray.is_initialized()
    assert_same(one, two, rtol=1e-4, atol=1e-5)
    for alone, together in zip(one.read_metrics(), two.read_metrics(), strict=True):
        assert together["learner/loss"] == pytest.approx(alone["learner/loss"], rel=1e-4)


def test_adapters_are_trained_too(answers):
    folder = run(answers, "run", "learner.lora={rank: 4}", "eval.every=4")
    losses = [line["eval/loss"] for line in folder.read_metrics() if "eval/loss" in line]
    assert losses[-1] < losses[0]


def test_the_model_of_a_run_starts_another_run(answers):
    first = run(answers)
    config = load_fine_tuning_config(str(answers), [f"model={first.root}"], "sft")
    assert FineTuning.load(config, answers / "next").learner.model == str(first.model)
    (answers / "unfinished" / "checkpoints").mkdir(parents=True)
    config = load_fine_tuning_config(str(answers), [f"model={answers / 'unfinished'}"], "sft")
    with pytest.raises(UserError, match="has not ended"):
        FineTuning.load(config, answers / "next")


def test_the_chat_template_of_the_run_goes_with_its_models(answers):
    template = answers / "other.jinja"
    template.write_text((answers / "model" / "chat_template.jinja").read_text() + "{# other #}")
    folder = run(answers, "run", f"rendering.chat_template={template}", "run.steps=1")
    assert AutoTokenizer.from_pretrained(folder.model).chat_template == template.read_text()
    agentloop.load_run(folder.root).export(answers / "exported")
    assert (answers / "exported" / "chat_template.jinja").read_text() == template.read_text()


def test_epochs_become_steps_and_the_schedule_ends_with_them(answers):
    config = load_fine_tuning_config(str(answers), ["run={epochs: 2.5}", "learner.lr_schedule=linear"], "sft")
    loaded = FineTuning.load(config, answers / "run")
    assert loaded.config.run.steps == loaded.learner.total_updates == 8  # 30 conversations in batches of 4
    plain = load_fine_tuning_config(str(answers), ["run={}"], "sft")
    assert FineTuning.load(plain, answers / "run").config.run.steps == 3
    with pytest.raises(UserError, match=r"run\.steps is 4 and run\.epochs is 1: set one of them to null"):
        load_fine_tuning_config(str(answers), ["run.epochs=1"], "sft")
    instead = load_fine_tuning_config(str(answers), ["run.epochs=1", "run.steps=null"], "sft")
    assert FineTuning.load(instead, answers / "run").config.run.steps == 3


def test_held_out_tasks_of_a_recipe_are_played_at_each_evaluation(answers, sums):
    folder = run(answers, "run", "eval.every=2", f"eval.rollout={sums / 'config.yaml'}")
    assert ["eval/reward/mean" in line for line in folder.read_metrics()] == [True, False, True, False, True]
    assert (folder.trajectories / "eval_000004.jsonl.gz").is_file()


def test_conversations_that_are_too_long_are_left_out_and_counted(answers):
    long = {"messages": [{"role": "user", "content": "a b" * 200}, {"role": "assistant", "content": "c"}]}
    (answers / "rows.py").write_text(
        "import json\nfrom pathlib import Path\n\ndef rows(only=False):\n"
        f"    long = {long!r}\n"
        "    lines = Path(__file__).with_name('conversations.jsonl').read_text().splitlines()\n"
        "    return [long] if only else [long, *map(json.loads, lines[:3])]\n"
    )
    data = f"data={{train: '{answers / 'rows.py'}:rows'}}"
    folder = run(answers, "run", data, "run.steps=1")
    [line] = folder.read_metrics()
    assert (line["batch/too_long"], line["learner/num_trajectories"]) == (1, 3)
    with pytest.raises(
        UserError, match=r"None of the 1 conversations of data\.train can be trained: 1 too_long\. .* 256"
    ):
        run(answers, "none", data, "data.train_options={only: true}")


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_batch_without_a_usable_row_is_skipped_and_counted(answers, method):
    name = "conversations.jsonl" if method == "sft" else "pairs.jsonl"
    short = (answers / name).read_text().splitlines()
    said = "word " * 300
    long = {"messages": [{"role": "user", "content": said}, {"role": "assistant", "content": "c"}]}
    long |= {"prompt": said, "chosen": "a", "rejected": "b"} if method == "dpo" else {}
    rows = [*short[:2], *[json.dumps(long)] * 5, *short[2:5]]
    (answers / name).write_text("\n".join(rows))
    settings = ("batch_size=2", "data.shuffle=false", "eval.every=3", "run.steps=6")
    whole = run(answers, "whole", *settings, method=method)
    lines = whole.read_metrics()[1:]
    assert [line.get("batch/too_long", 0) for line in lines] == [0, 5, 0, 0, 5, 0]
    with pytest.raises(KeyboardInterrupt):
        run(answers, "parts", *settings, method=method, observer=_Stop())
    assert_same(whole, run(answers, "parts", *settings, method=method), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("learner.loss=ppo", "learner.loss is 'ppo'"),
        ("learner.seed=3", "set run.seed"),
        ("eval={every: 2}\ndata.eval=null", None),
        ("data.max_tokens=512", "token_budget=512"),
        ("learner.ranks=8", "batch_size is 4"),
        ("learner={lr_schedule: linear, warmup_updates: 4}", "warmup_updates"),
        (
            "run={epochs: 1}\nlearner={lr_schedule: linear, warmup_updates: 3}",
            r"warmup_updates is 3, but the run has 3 updates. Lower it, or raise run.steps or run.epochs",
        ),
        ("learner.corrections=[truncate]", "corrections"),
        ("data.train=pairs.jsonl", "no finished conversation"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_fix(answers, override, error, monkeypatch):
    monkeypatch.chdir(answers)
    words = override.split("\n")
    with pytest.raises(UserError, match=error or "eval.every is 2"):
        FineTuning.load(load_fine_tuning_config(str(answers), words, "sft"), answers / "run")
