"""Format of the paper: programs in `<code>` and their output in `<interpreter>`, all in one assistant turn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from agentloop.rendering.inline import InlineFormat
from agentloop.types.messages import Message, text_of
from agentloop.types.trajectory import NO_VERSION, SegmentKind, Trajectory

if TYPE_CHECKING:
    from agentloop.rendering.template_renderer import TemplateRenderer

FORMAT = InlineFormat(
    tag="code",
    tool="code_interpreter",
    argument="code",
    result="\n<interpreter>\n{}\n</interpreter>\n\n",
    fenced=True,
)
"""Format of calls, equal to that of paper.yaml."""

PROMPT = """Work out the problem below step by step. Where computing helps, write a Python program like this:
<code>
```python
print(6 * 7)
```
</code>
It is run at once, and what it prints follows between <interpreter> and </interpreter>; then go on. Every program \
starts anew and has to import what it uses. End with
<answer>
\\boxed{{the final answer}}
</answer>

Problem:
{question}"""
"""Our instructions for the paper's tags."""

_OUTPUT = re.compile(r"(?<=</code>)(\s*<interpreter>.*?</interpreter>\s*)", re.DOTALL)


def paper_rows(rows: Iterable[Mapping[str, Any]], suffix: str) -> Iterator[dict[str, Any]]:
    """Convert rows to the paper's format, without the `suffix` that requests the answer."""
    for row in rows:
        question = str(row["prompt"][0]["content"]).removesuffix(suffix)
        yield {**row, "prompt": [{"role": "user", "content": PROMPT.format(question=question)}]}


def to_trajectory(messages: Sequence[Message], renderer: TemplateRenderer) -> Trajectory:
    """Convert a question and its answer to the trajectory that the loop would record.

    Outputs are observations without loss. Logprobs are 0, as in `agentloop.recipes.tiny.traces.to_trajectory`.
    """
    *asked, answered = messages
    trajectory = Trajectory(messages=list(messages))
    trajectory.append(SegmentKind.PROMPT, renderer.render_prompt(asked))
    pieces = [renderer.encode(piece) for piece in _OUTPUT.split(text_of(answered["content"]))]
    pieces[-1].append(renderer.stop_token_ids[0])
    for sampled, shown in zip_longest(pieces[::2], pieces[1::2], fillvalue=()):
        trajectory.append(
            SegmentKind.SAMPLED, sampled, logprobs=[0.0] * len(sampled), versions=[NO_VERSION] * len(sampled)
        )
        trajectory.append(SegmentKind.OBSERVATION, shown)
    return trajectory
