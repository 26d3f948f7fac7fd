import random
import re
from collections import Counter
from functools import cache

from agentloop.recipes.tiny.task import OPERATIONS
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.recipes.tiny.traces import GUESS_SHARE, LISTENING_SHARE, conversation
from agentloop.rendering import renderer_for
from agentloop.rendering.conversation import conversation_trajectory
from agentloop.types.trajectory import SegmentKind

tokenizer = cache(build_tokenizer)
TOOLS = [
    {
        "type": "function",
        "function": {"name": "code_interpreter", "description": "Runs.", "parameters": {"type": "object"}},
    }
]


def conversations(count, seed=0):
    rng = random.Random(seed)
    return [conversation(rng) for _ in range(count)]


def test_trace_matches_the_rendered_template():
    renderer = renderer_for(tokenizer())
    for messages in conversations(20):
        trajectory = conversation_trajectory(messages, renderer, TOOLS)
        text = tokenizer().apply_chat_template(messages, tools=TOOLS, tokenize=False)
        ids = tokenizer().encode(text, add_special_tokens=False)
        # The line end behind the last turn is the template's, and nothing follows it.
        assert trajectory.token_ids.tolist() == ids[:-1]


def test_only_assistant_text_is_sampled():
    renderer = renderer_for(tokenizer())
    messages = next(messages for messages in conversations(10) if len(messages) == 4)
    trajectory = conversation_trajectory(messages, renderer, TOOLS)
    assert [segment.kind for segment in trajectory.segments] == [
        SegmentKind.PROMPT,
        SegmentKind.SAMPLED,
        SegmentKind.TEMPLATE,
        SegmentKind.OBSERVATION,
        SegmentKind.SAMPLED,
    ]
    sampled = [trajectory.token_ids[s.start : s.end] for s in trajectory.sampled_segments()]
    assert [ids[-1] for ids in sampled] == [tokenizer().eos_token_id] * 2
    turns = [renderer.parse(ids) for ids in sampled]
    assert turns[0].calls[0].arguments == messages[1]["tool_calls"][0]["function"]["arguments"]
    assert turns[0].reasoning == messages[1]["reasoning_content"]
    assert turns[1].content == messages[3]["content"]


def test_question_reveals_little_about_the_program():
    """Else the warm-up would teach what reinforcement learning is to find."""
    pairs = Counter(filter(None, map(asked_and_used, conversations(6000))))
    assert len(pairs) == len(OPERATIONS) ** 2
    by_chance = 6000 * (1 - GUESS_SHARE) * (1 - LISTENING_SHARE) / len(pairs)
    listening = 6000 * (1 - GUESS_SHARE) * LISTENING_SHARE / len(OPERATIONS)
    for (asked, used), count in pairs.items():
        expected = by_chance + (listening if asked == used else 0)
        assert 0.6 * expected < count < 1.4 * expected, (asked, used)


def test_thinking_names_the_program():
    for messages in conversations(200):
        if pair := asked_and_used(messages):
            assert messages[1]["reasoning_content"] == f"I need the {pair[1]}."


def asked_and_used(messages):
    """Nouns of the operation asked for and of the one that the program computes; None for a guess."""
    if len(messages) < 4:
        return None
    asked = re.search(r" the (.+) of \d", messages[0]["content"])[1]
    code = messages[1]["tool_calls"][0]["function"]["arguments"]["code"]
    return asked, next(operation.noun for operation in OPERATIONS if shape(operation.code) == shape(code))


def shape(code):
    return re.sub(r"\d|\{[ab]\}", "", code)
