from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.process.atomic import atomic_folder, unfinished
from agentloop.registry.named_objects import load_object
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.run.learners import create

_TINY = Path(__file__).parents[2] / "support" / "tiny.py"
_save_tiny_qwen3 = load_object(f"{_TINY}:save_tiny_qwen3", "function")
_random_batch = load_object(f"{_TINY}:random_batch", "function")


def _batch(seed: int) -> TrainBatch:
    return _random_batch(6, seed=seed)


def _learner(model: Path) -> FsdpLearner:
    learner = create(
        LearnerConfig(
            model=str(model),
            device="cpu",
            lr=1e-2,
            weight_decay=0.1,
            lr_schedule="cosine",
            warmup_updates=2,
            total_updates=20,
            mini_batches=2,
        )
    )
    assert isinstance(learner, FsdpLearner)
    return learner


_TIMES = ("seconds/", "tokens_per_second", "flops_per_second")


def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(tiny_qwen3, tmp_path: Path):
    model = tiny_qwen3()
    unbroken = _learner(model)
    expected = [unbroken.step(_batch(step)) for step in range(5)]

    first = _learner(model)
    for step in range(2):
        first.step(_batch(step))
    first.save(tmp_path / "state")
    random_state = torch.get_rng_state()
    torch.manual_seed(12345)
    resumed = _learner(model)
    resumed.load(tmp_path / "state")
    assert torch.equal(torch.get_rng_state(), random_state)
    for step in range(2, 5):
        metrics = resumed.step(_batch(step))
        assert {k: v for k, v in metrics.items() if not k.startswith(_TIMES)} == {
            k: v for k, v in expected[step].items() if not k.startswith(_TIMES)
        }
    for (name, got), (_, want) in zip(resumed.weights(), unbroken.weights(), strict=True):
        assert torch.equal(got, want), name
    # Saving changed nothing for the one that went on either.
    for step in range(2, 5):
        first.step(_batch(step))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first.weights(), unbroken.weights(), strict=True))
    assert (resumed.progress.steps, resumed.progress.updates) == (5, 10)


@pytest.mark.parametrize("options", [{}, {"gather_once": False}, {"checkpointing": "full"}], ids=str)
def test_the_reference_follows_the_policy_and_a_resume_has_it(tiny_qwen3, tmp_path: Path, options):
    def learner() -> FsdpLearner:
        moving = {"kl_coef": 0.1, "reference_every": 2, "lr": 1e-2, **options}
        return FsdpLearner(LearnerConfig(model=str(tiny_qwen3()), device="cpu", **moving))

    def logprobs(of: FsdpLearner) -> tuple[np.ndarray, np.ndarray]:
        return np.concatenate(of.logprobs(_batch(9).samples)), np.concatenate(of.reference_logprobs(_batch(9).samples))

    first = learner()
    start, _ = logprobs(first)
    first.step(_batch(0))
    assert np.array_equal(logprobs(first)[1], start)
    first.save(tmp_path / "before")
    first.step(_batch(1))
    second, reference = logprobs(first)
    assert np.array_equal(reference, second)
    assert not np.allclose(reference, start, atol=1e-3)
    first.step(_batch(2))
    assert np.array_equal(logprobs(first)[1], second)
    first.save(tmp_path / "after")
    first.step(_batch(3))
    for name, steps in (("before", (1, 2, 3)), ("after", (3,))):
        resumed = learner()
        resumed.load(tmp_path / name)
        for step in steps:
            resumed.step(_batch(step))
        assert all(map(np.array_equal, logprobs(resumed), logprobs(first))), name


def test_a_state_of_a_fixed_reference_can_be_resumed_with_a_moving_one(tiny_qwen3, tmp_path: Path):
    fixed, moving = (
        FsdpLearner(LearnerConfig(model=str(tiny_qwen3()), device="cpu", kl_coef=0.1, lr=1e-2, reference_every=every))
        for every in (None, 2)
    )
    fixed.step(_batch(0))
    fixed.save(tmp_path / "state")
    moving.load(tmp_path / "state")
    got, want = (np.concatenate(each.reference_logprobs(_batch(9).samples)) for each in (moving, fixed))
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "no KL to a reference model: set kl_coef above 0"), ({"kl_coef": 0.1, "lora": {}}, "without its adapters")],
)
def test_a_moving_reference_needs_a_reference_of_its_own(options, message):
    with pytest.raises(ValueError, match=message):
        LearnerConfig(reference_every=2, **options)


@pytest.mark.parametrize("options", [{}, {"lora": {"rank": 2}}, {"gather_once": False}])
def test_a_state_saved_before_the_first_update_is_that_of_a_new_learner(tiny_qwen3, tmp_path: Path, options):
    """The policy has no update yet when the run is saved, as while a critic warms up."""
    new, saved, resumed = (
        FsdpLearner(LearnerConfig(model=str(tiny_qwen3()), device="cpu", lr=1e-2, weight_decay=0.1, **options))
        for _ in range(3)
    )
    saved.step(TrainBatch([]))
    saved.save(tmp_path / "state")
    resumed.load(tmp_path / "state")
    for learner in (new, saved, resumed):
        learner.step(_batch(0))
        learner.step(_batch(1))
    for (name, want), (_, one), (_, other) in zip(new.weights(), saved.weights(), resumed.weights(), strict=True):
        assert torch.equal(one, want), name
        assert torch.equal(other, want), name


def test_a_captured_state_does_not_move_with_the_learner(tiny_qwen3, tmp_path: Path):
    learner = _learner(tiny_qwen3())
    learner.step(_batch(0))
    learner.save(tmp_path / "now")
    captured = learner.capture()
    learner.step(_batch(1))
    captured.write(tmp_path / "later")
    first, second = _learner(tiny_qwen3()), _learner(tiny_qwen3())
    first.load(tmp_path / "now")
    second.load(tmp_path / "later")
    assert first.progress == second.progress
    assert _kept(first.step(_batch(1))) == _kept(second.step(_batch(1)))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first.weights(), second.weights(), strict=True))


def _kept(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith(_TIMES)}


def test_saving_again_replaces_and_leaves_nothing_else(tiny_qwen3, tmp_path: Path):
    learner = _learner(tiny_qwen3())
    learner.save(tmp_path / "run" / "state")
    learner.step(_batch(0))
    learner.save(tmp_path / "run" / "state")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["state"]
    other = _learner(tiny_qwen3())
    other.load(tmp_path / "run" / "state")
    assert other.progress.steps == 1


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path):
    target = tmp_path / "state"
    with atomic_folder(target) as folder:
        (folder / "a").write_text("old")
        assert not target.exists()

    def fail() -> None:
        with atomic_folder(target) as folder:
            (folder / "a").write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (target / "a").read_text() == "old"
    # What a killed process left is not mixed into the next attempt.
    unfinished(target).mkdir()
    (unfinished(target) / "stale").write_text("")
    with atomic_folder(target) as folder:
        (folder / "b").write_text("new")
    assert [path.name for path in target.iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_state_that_is_not_there_or_not_of_this_model(tiny_qwen3, tmp_path: Path):
    learner = _learner(tiny_qwen3())
    with pytest.raises(UserError, match="does not contain the state of a learner"):
        learner.load(tmp_path / "nothing")
    learner.save(tmp_path / "state")
    other = _learner(tiny_qwen3(hidden_size=48))
    with pytest.raises(UserError, match="does not fit the model"):
        other.load(tmp_path / "state")
    (data,) = (tmp_path / "state").glob("*.distcp")
    data.write_bytes(b"")
    with pytest.raises(UserError, match=r"or is damaged \(EOFError\)\. Set model to"):
        learner.load(tmp_path / "state")
    (tmp_path / "state" / ".metadata").unlink()
    with pytest.raises(UserError, match=rf"or is damaged \(.*\)\. .*, or remove {tmp_path} to resume from the"):
        learner.load(tmp_path / "state")


def test_a_hugging_face_folder_stands_on_its_own(tmp_path: Path):
    model = _save_tiny_qwen3(tmp_path / "model")
    (tmp_path / "tokenizer.json").write_text("{}")
    (model / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    (model / "pytorch_model.bin").write_text("old weights")
    learner = _learner(model)
    learner.step(_batch(0))
    learner.save_hf(tmp_path / "out")
    out = tmp_path / "out"
    assert (out / "chat_template.jinja").read_text() == "{{ messages }}"
    assert (out / "tokenizer.json").read_text() == "{}"
    assert not (out / "tokenizer.json").is_symlink()
    assert not (out / "pytorch_model.bin").exists()
    assert "agentloop" not in (out / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert type(loaded).__name__ == "Qwen3ForCausalLM"
    parameters = dict(loaded.named_parameters())
    weights = dict(learner.weights())
    assert parameters.keys() == weights.keys() == load_file(out / "model.safetensors").keys()
    assert all(torch.equal(parameters[name], weights[name]) for name in weights)
    again = create(LearnerConfig(model=str(out), device="cpu"))
    assert np.array_equal(again.logprobs(_batch(1).samples)[0], learner.logprobs(_batch(1).samples)[0])  # type: ignore[attr-defined]


def test_another_chat_template_replaces_all_of_the_model(tmp_path: Path):
    model = _save_tiny_qwen3(tmp_path / "model")
    (model / "additional_chat_templates").mkdir()
    for name in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        (model / name).write_text("{{ messages }}")
    learner = FsdpLearner(LearnerConfig(model=str(model), device="cpu", chat_template="{{ tools }}"))
    learner.save_hf(tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ tools }}"
    assert not (tmp_path / "out" / "additional_chat_templates").exists()


def test_the_generation_config_of_the_model_is_kept_also_if_transformers_calls_it_invalid(tmp_path: Path):
    model = _save_tiny_qwen3(tmp_path / "model")
    settings = model / "generation_config.json"
    settings.write_text('{"temperature": 0.9, "top_p": 0.6, "eos_token_id": [1, 2]}')
    learner = _learner(model)
    learner.save_hf(tmp_path / "with")
    assert (tmp_path / "with" / settings.name).read_text() == settings.read_text()
    settings.unlink()
    learner.save_hf(tmp_path / "without")
    assert not (tmp_path / "without" / settings.name).exists()


def test_tied_weights_are_written_once_in_every_precision(tmp_path: Path):
    config = LearnerConfig(model=str(_save_tiny_qwen3(tmp_path / "model")), device="cpu", save_dtype="bfloat16")
    learner = FsdpLearner(config)
    learner.save_hf(tmp_path / "out")
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert saved.keys() == dict(learner.weights()).keys()
    assert "lm_head.weight" not in saved
