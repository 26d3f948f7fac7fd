from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentloop.envs.rewards import load_reward
from agentloop.errors import UserError, WrongTypeError
from agentloop.types.trajectory import SegmentKind, Trajectory

SCORES = """
SEEN = []

def compute_score(data_source, solution_str, ground_truth, extra_info, factor=1.0):
    SEEN.append((data_source, solution_str, ground_truth, extra_info))
    return factor * (ground_truth in solution_str)

async def detailed(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 0.5, "acc": True, "pred": "text is not for the log"}

def nothing(data_source, solution_str, ground_truth, extra_info):
    return {"acc": 1.0}

number = 3
"""


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    path = tmp_path / "scores.py"
    path.write_text(SCORES)
    return path


def _seen(scores: Path) -> list:
    from agentloop.registry.named_objects import load_object

    return load_object(f"{scores}:SEEN", "list")


_ROW = {"data_source": "sums", "answer": "42", "extra_info": {"split": "test"}}


async def test_function_receives_the_verl_arguments(episode, scores):
    trajectory = episode(("I compute.", "Let me see."), "It is 42.")
    trajectory.messages[1]["tool_calls"][0]["function"]["arguments"] = {"code": "6*7"}
    trajectory.turn_rewards = [0.25, 0.0]
    reward = load_reward("verl", {"function": f"{scores}:compute_score", "reward_kwargs": {"factor": 2.0}})
    assert await reward(trajectory, _ROW) == 2.0
    ((source, text, truth, extra),) = _seen(scores)
    assert (source, truth) == ("sums", "42")
    assert extra == {
        "split": "test",
        "num_turns": 4,
        "rollout_reward_scores": {},
        "turn_scores": [],
        "tool_rewards": [0.25],
    }
    assert text == (
        "<think>\nI compute.\n</think>\nLet me see.\n"
        '<tool_call>\n{"name": "t", "arguments": {"code": "6*7"}}\n</tool_call>\n'
        "user\n<tool_response>\ndone\n</tool_response>\nassistant\nIt is 42."
    )


async def test_examples_in_the_prompt_are_not_scored(episode, scores):
    trajectory = episode("No.")
    trajectory.messages[:0] = [{"role": "user", "content": "e.g.?"}, {"role": "assistant", "content": "42"}]
    assert await load_reward("verl", {"function": f"{scores}:compute_score"})(trajectory, _ROW) == 0.0
    assert _seen(scores)[0][1] == "No."


async def test_unanswered_prompt_is_not_a_solution(scores):
    asked = Trajectory(messages=[{"role": "user", "content": "42"}])
    assert await load_reward("verl", {"function": f"{scores}:compute_score"})(asked, _ROW) == 0.0
    assert _seen(scores)[0][1] == ""


async def test_tokenizer_decodes_the_exact_tokens(scores, tmp_path):
    words = {"<s>": 0, "ask": 1, "42": 2, "then": 3}
    plain = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>").save_pretrained(tmp_path / "tokenizer")
    trajectory = Trajectory(messages=[{"role": "user", "content": "ask"}, {"role": "assistant", "content": "?"}])
    trajectory.append(SegmentKind.PROMPT, [0, 1])
    trajectory.append(SegmentKind.SAMPLED, [3, 2, 0], logprobs=np.zeros(3).tolist(), versions=[0, 0, 0])
    trajectory.turn_rewards.append(0.0)
    reward = load_reward("verl", {"function": f"{scores}:compute_score", "tokenizer": str(tmp_path / "tokenizer")})
    assert await reward(trajectory, _ROW) == 1.0
    assert _seen(scores)[0][1] == "then 42"


async def test_extra_numbers_are_logged(episode, scores):
    trajectory = episode("42")
    assert await load_reward("verl", {"function": f"{scores}:detailed"})(trajectory, _ROW) == 0.5
    assert trajectory.metrics["reward/acc"] == 1.0
    assert "reward/pred" not in trajectory.metrics


async def test_invalid_score_raises(episode, scores):
    with pytest.raises(WrongTypeError, match=r"^nothing \(scores.py, .*returned a dict without 'score': it has acc"):
        await load_reward("verl", {"function": f"{scores}:nothing"})(episode("42"), _ROW)
    with pytest.raises(LookupError, match="no 'answer' column"):
        await load_reward("verl", {"function": f"{scores}:compute_score"})(episode("42"), {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"function": "scores.py:number"}, "must be callable"),
        ({"function": "scores.py:compute"}, "Did you mean 'compute_score'"),
        ({"function": "scores.py:compute_score", "tokenizer": "./nowhere"}, "cannot be loaded"),
        ({}, "missing a required argument: 'function'"),
    ],
)
def test_unusable_functions_raise_before_the_run(scores, monkeypatch, options, said):
    monkeypatch.chdir(scores.parent)
    with pytest.raises(UserError, match=said):
        load_reward("verl", options)
