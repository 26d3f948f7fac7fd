import time

import pytest

from agentloop.envs.rewards.texts import inside, last_boxed, last_fence, turn_text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<a> 1 </a><a>2</a>", ["1", "2"]),
        ("<a><a>1</a></a>", ["<a>1"]),
        ("</a><a>1", []),
        ("<a>1\n2</a>", ["1\n2"]),
    ],
)
def test_text_inside_tags_is_extracted(text, found):
    assert inside(text, "a") == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```py\na\n```\n```python\nb\n```\n```\nc\n```\n", "b\n"),
        ("```\na\n```\n```bash\nb\n```", "a\n"),
        ("  ```python title=x\n  a\n  ```  ", "  a\n"),
        ("```python\nnot closed", None),
        ("```bash\nb\n```", None),
        ("no fence", None),
    ],
)
def test_last_code_fence_is_extracted(text, found):
    assert last_fence(text, "python", "py") == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{1} \boxed{\frac{a}{b}}", r"\frac{a}{b}"),
        (r"\boxed{1} \boxed{2", None),
        (r"\boxed 1", None),
        (r"\boxed{}", ""),
    ],
)
def test_last_boxed_answer_is_extracted(text, found):
    assert last_boxed(text) == found


def test_thinking_is_restored():
    assert turn_text({"role": "assistant", "content": "b", "reasoning_content": "a"}) == "<think>\na\n</think>\nb"
    assert turn_text({"role": "assistant", "content": [{"type": "text", "text": "b"}]}) == "b"


@pytest.mark.parametrize("text", ["<answer>" * 50_000, "```python\n" * 50_000, "\\boxed{" * 50_000])
def test_repetitive_texts_are_fast(text):
    """Rewards of microseconds run on the event loop, whatever the model wrote."""
    started = time.perf_counter()
    assert inside(text, "answer") == []
    assert last_fence(text, "python") is None
    assert last_boxed(text) is None
    assert time.perf_counter() - started < 1.0
