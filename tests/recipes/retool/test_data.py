import json

import pytest

from agentloop.envs.datasets.dataset import load_dataset
from agentloop.recipes.hub_data import write_rows
from agentloop.recipes.retool.prepare import ANSWER_FORMAT, aime_rows, dapo_rows, sft_rows
from agentloop.recipes.retool.traces import TraceError, as_messages

ANSWERED = """Let me compute.
<code>
```python
print(1 + 1)
```
</code>
<interpreter>
2
</interpreter>
Again, as a check.
<code>
```python
for i in range(2):
    print(i)
```
</code>
<interpreter>
0
1
</interpreter>
So it is two.
<answer>
\\boxed{2}
</answer>"""


def trace(answered, asked="Solve.\n\n*user question:*\nWhat is 1 + 1?\n<answer>\n\\boxed{'x'}\n</answer>"):
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]}


def test_trace_becomes_calls_and_results():
    question, first, seen, second, _, answer = as_messages(trace(ANSWERED))
    assert question == {"role": "user", "content": "What is 1 + 1?\n\n\\boxed{'x'}"}
    assert first["content"] == "Let me compute."
    assert first["tool_calls"][0]["function"] == {"name": "code_interpreter", "arguments": {"code": "print(1 + 1)"}}
    assert seen == {"role": "tool", "content": "2"}
    assert second["tool_calls"][0]["function"]["arguments"]["code"] == "for i in range(2):\n    print(i)"
    assert answer == {"role": "assistant", "content": "So it is two.\n\n\\boxed{2}"}


@pytest.mark.parametrize(
    ("answered", "problem"),
    [
        ("It is 2.", "no <answer>"),
        (ANSWERED.replace("<interpreter>\n2\n</interpreter>\n", ""), "code without output"),
        ("<interpreter>2</interpreter><answer>2</answer>", "output without code"),
    ],
)
def test_invalid_traces_are_rejected_and_skipped(answered, problem, capsys):
    with pytest.raises(TraceError, match=problem):
        as_messages(trace(answered))
    assert len(list(sft_rows([trace(answered), trace(ANSWERED)]))) == 1
    assert "1 traces" in capsys.readouterr().err


def test_trace_without_question_is_rejected():
    with pytest.raises(TraceError, match="user question"):
        as_messages(trace(ANSWERED, asked="What?"))


def test_rows_load_as_a_dataset(tmp_path):
    raw = {"prompt": [{"role": "user", "content": "What is 2 + 2?"}], "reward_model": {"ground_truth": "4"}}
    other = {"prompt": [{"role": "user", "content": "What is 3 + 3?"}], "reward_model": {"ground_truth": "6"}}
    assert write_rows(tmp_path / "data" / "train.jsonl", dapo_rows([raw, other, raw])) == 2
    first, second = load_dataset(str(tmp_path / "data" / "train.jsonl"))
    assert first["messages"][0]["content"] == "What is 2 + 2?" + ANSWER_FORMAT
    assert (first["answer"], second["answer"]) == ("4", "6")
    assert first["id"] != second["id"]
    (aime,) = aime_rows([{"problem": "Find x.", "answer": 70}])
    assert json.loads(json.dumps(aime))["answer"] == "70"
