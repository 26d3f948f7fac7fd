import pytest

from agentloop.errors import nearest


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("trian", ["chain", "train"], "train"),
        ("vlm", ["hf", "vllm"], "vllm"),
        ("pp", ["ppo", "sapo"], "ppo"),
        ("Top-K", ["top_k", "top_p"], "top_k"),
        ("groupsize", ["group_size", "groups_per_step"], "group_size"),
        ("models", ["model", "base_model"], "model"),
        ("temp", ["stop_strings", "temperature"], "temperature"),
        ("clip", ["grad_clip", "lr"], "grad_clip"),
        ("adv", ["advantage", "advantage_options"], "advantage"),
        ("max_new_tokens", ["max_tokens", "max_turns"], "max_tokens"),
        ("evaluation", ["eval", "eval_options"], "eval"),
        ("+", ["+", "-"], "+"),
    ],
)
def test_typing_errors_and_shorter_or_longer_names_are_recognised(name, known, meant):
    assert nearest(name, known) == f" Did you mean {meant!r}?"


def test_names_that_fit_equally_well_are_all_suggested():
    assert nearest("limit", ["eval_limit", "shuffle", "train_limit"]) == " Did you mean 'eval_limit' or 'train_limit'?"
    assert nearest("max", ["max_calls", "max_seconds", "max_tokens", "max_turns"]) == ""


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("steps", ["staleness", "eps"]),
        ("trainer", ["learner"]),
        ("logging", ["sampling"]),
        ("precision", ["freeze_vision"]),
        ("test", ["sft"]),
        ("finetune", ["init"]),
        ("llama", ["vllm"]),
        ("kl", ["lr"]),
        ("max_steps", ["max_tokens"]),
        ("save_steps", ["steps"]),
        ("gradient_accumulation", ["grad_clip"]),
        ("x", ["k", "n"]),
        ("*", ["+", "-"]),
        ("", ["a"]),
    ],
)
def test_names_that_only_share_letters_are_not_suggested(name, known):
    assert nearest(name, known) == ""
