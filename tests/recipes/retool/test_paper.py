"""The paper's format: prompts, traces as token streams, and a config that says the same."""

from pathlib import Path

import pytest

from agentloop.api.recipe import load_run_config
from agentloop.recipes.retool.paper import FORMAT, PROMPT, paper_rows
from agentloop.recipes.retool.prepare import ANSWER_FORMAT, dapo_rows, paper_sft_rows
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from agentloop.rendering.conversation import conversation_trajectory
from agentloop.trainer.run.checks import check_trainable
from agentloop.types.trajectory import SegmentKind

CONFIG = Path(__file__).parents[3] / "recipes" / "retool" / "paper.yaml"
ANSWERED = """Let me compute.
<code>
```python
print(1 + 1)
```
</code>
<interpreter>
2
</interpreter>
So it is two.
<answer>
\\boxed{2}
</answer>"""
ROW = {
    "messages": [
        {"role": "user", "content": "Solve.\n*user question:*\nWhat is 1 + 1?"},
        {"role": "assistant", "content": ANSWERED},
    ]
}


@pytest.fixture(scope="module")
def renderer():
    return renderer_for(build_tokenizer(), inline=FORMAT)


def test_config_uses_the_paper_format():
    config = load_run_config(str(CONFIG), [])
    check_trainable(config)
    inline = config.rendering.inline
    assert {name: getattr(inline, name) for name in FORMAT.__slots__} == {
        name: getattr(FORMAT, name) for name in FORMAT.__slots__
    }
    assert config.eval.top_p == 0.7


def test_prompts_explain_the_format_and_ask_the_question():
    raw = {"prompt": [{"role": "user", "content": "What is 2 + 2?"}], "reward_model": {"ground_truth": "4"}}
    (row,) = paper_rows(dapo_rows([raw]), ANSWER_FORMAT)
    content = row["prompt"][0]["content"]
    assert content.endswith("Problem:\nWhat is 2 + 2?")
    assert "\\boxed{the final answer}" in content
    assert row["answer"] == "4"


def test_trace_outputs_carry_no_loss(renderer):
    (row,) = paper_sft_rows([ROW, {"messages": [{"role": "user", "content": "?"}, {"role": "assistant"}]}])
    assert row["messages"][0]["content"] == PROMPT.format(question="What is 1 + 1?")
    trajectory = conversation_trajectory(row["messages"], renderer)
    ids = trajectory.token_ids.tolist()
    shown = [(segment.kind, renderer.decode(ids[segment.start : segment.end])) for segment in trajectory.segments[1:]]
    before, after = ANSWERED.split("\n<interpreter>\n2\n</interpreter>\n")
    assert shown == [
        (SegmentKind.SAMPLED, before),
        (SegmentKind.OBSERVATION, "\n<interpreter>\n2\n</interpreter>\n\n"),  # as in rollouts
        (SegmentKind.SAMPLED, after + "<|im_end|>"),
    ]
    assert trajectory.loss_mask.sum() == sum(len(renderer.encode(part)) for part in (before, after)) + 1


def test_sampled_text_is_parsed_by_the_renderer(renderer):
    call = {"function": {"name": "code_interpreter", "arguments": {"code": "print(1 + 1)"}}}
    message = {"role": "assistant", "content": "Let me see. ", "reasoning_content": "hm", "tool_calls": [call]}
    parsed = renderer.parse(renderer.render_turn(message))
    assert parsed.calls[0].arguments == {"code": "print(1 + 1)"}
    assert parsed.content == "<think>\nhm\n</think>\n\nLet me see."
    answer = renderer.render_turn({"role": "assistant", "content": "It is 2."})
    assert answer[-1] == renderer.stop_token_ids[0]
    assert renderer.parse(answer).content == "It is 2."
