"""Measuring the prompts of a dataset."""

from types import SimpleNamespace

from agentloop.episodes.text_renderer import TextRenderer
from agentloop.trainer.rehearsal.prompts import measure


def test_every_nth_prompt_of_a_large_dataset_is_measured():
    train = [{"messages": [{"role": "user", "content": "a" * length}]} for length in (1, 9, 3)]
    setup = SimpleNamespace(train=train, renderer=TextRenderer(), toolset=SimpleNamespace(schemas=()))
    assert measure(setup, longest=10, most=2) == ("1 to 3 tokens, median 2 (one in 2 of 3 rows)", [])
    assert measure(setup, longest=10)[0] == "1 to 9 tokens, median 3 (all 3 rows)"
