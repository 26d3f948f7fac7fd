"""Format of the paper: programs in `<code>` and their output in `<interpreter>`, all in one assistant turn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from agentloop.rendering.inline import InlineFormat
from agentloop.types.messages import Message

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

_OUTPUT = re.compile(r"(?<=</code>)\s*<interpreter>\s*(.*?)\s*</interpreter>\s*", re.DOTALL)


def paper_rows(rows: Iterable[Mapping[str, Any]], suffix: str) -> Iterator[dict[str, Any]]:
    """Convert rows to the paper's format, without the `suffix` that requests the answer."""
    for row in rows:
        question = str(row["prompt"][0]["content"]).removesuffix(suffix)
        yield {**row, "prompt": [{"role": "user", "content": PROMPT.format(question=question)}]}


def turns_of(answer: str) -> list[Message]:
    """Return the messages of an answer with programs; their outputs are the tool's, so they carry no loss."""
    pieces = _OUTPUT.split(answer)
    said: list[Message] = [{"role": "assistant", "content": piece} for piece in pieces[::2]]
    shown: list[Message] = [{"role": "tool", "content": piece} for piece in pieces[1::2]]
    return [message for pair in zip_longest(said, shown) for message in pair if message is not None]
