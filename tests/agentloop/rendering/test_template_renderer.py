"""Rendered prompts and continuations, some of them token by token."""

import sys
from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from agentloop.errors import UserError
from agentloop.rendering import renderer_for
from agentloop.rendering.template_renderer import TemplateRenderer
from agentloop.types.image import PixelFormat
from agentloop.types.messages import ToolCall
from agentloop.vision.processor import ImageProcessor
from agentloop.vision.seen_size import SmartResize

TOOLS = ({"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}},)
# The tokenizer `bytes`: one token a byte in the order of the byte-level alphabet, then the added tokens.
START, END, NEWLINE = 257, 258, 198
RESULT_OPEN, RESULT_CLOSE = 267, 268


def result(text, **fields):
    return [{"role": "tool", "content": text, **fields}]


def test_token_ids_of_a_small_episode(make_renderer):
    renderer = make_renderer("chatml", "bytes")
    assert renderer.stop_token_ids == (END, 256)  # the end of text, too
    # <|im_start|>system\nBe helpful.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n
    # fmt: off
    system = [START, 82, 88, 82, 83, 68, 76, NEWLINE, 33, 68, 220, 71, 68, 75, 79, 69, 84, 75, 13, END, NEWLINE]
    user = [START, 84, 82, 68, 81, NEWLINE, 71, 72, END, NEWLINE]
    assistant = [START, 64, 82, 82, 72, 82, 83, 64, 77, 83, NEWLINE]
    # fmt: on
    assert renderer.render_prompt([{"role": "user", "content": "hi"}]) == system + user + assistant
    observation = [START, 84, 82, 68, 81, NEWLINE, RESULT_OPEN, NEWLINE, 19, 17, NEWLINE, RESULT_CLOSE, END, NEWLINE]
    for _ in range(3):  # rendered by the template, then spliced
        following = renderer.render_continuation(array("i", [64, END]), result("42"))
        assert following.closing == [NEWLINE]
        assert following.observation == observation + assistant


def test_truncated_turn_is_closed_first(make_renderer):
    following = make_renderer("chatml", "bytes").render_continuation([64], result("42"))
    assert following.closing == [END, NEWLINE]
    assert make_renderer("chatml", "bytes").render_continuation([], result("42")).closing == [END, NEWLINE]


def test_template_without_newline_after_the_turn(make_renderer):
    renderer = make_renderer("bracket", "bytes")
    message = result("42", tool_call_id="c1")
    following = renderer.render_continuation([renderer.stop_token_ids[0]], message)
    assert following.closing == []
    assert renderer.decode(following.observation) == "[RESULT]c1: 42[/RESULT]"
    assert renderer.render_continuation([64], message).closing == [renderer.stop_token_ids[0]]


def test_results_share_a_user_turn_if_the_template_groups_them(make_renderer):
    renderer = make_renderer("chatml")
    following = renderer.render_continuation([renderer.stop_token_ids[0]], result("1") + result("2"))
    assert renderer.decode(following.observation) == (
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("repeat", [1, 3])
def test_control_tokens_in_a_result_become_plain_text(make_renderer, repeat):
    renderer = make_renderer("chatml", "bytes")
    for _ in range(repeat):
        following = renderer.render_continuation([END], result("<|im_end|>"))
    # fmt: off
    text = [27, 91, 72, 76, 62, 68, 77, 67, 91, 29]
    # fmt: on
    assert following.observation[8:18] == text
    assert following.observation.count(END) == 1


def test_lone_surrogates_in_a_result_become_replacement_characters(make_renderer):
    renderer = make_renderer("chatml")
    for _ in range(3):
        following = renderer.render_continuation([END], result("a\udc80\ud83d\udc80b"))
        assert "a\ufffd\ufffd\ufffdb" in renderer.decode(following.observation)


def test_only_system_messages_may_use_control_tokens(make_renderer):
    renderer = make_renderer("think", "bytes")
    think = renderer.encoder.added["<think>"]
    for _ in range(3):
        ids = renderer.render_prompt(
            [{"role": "system", "content": "use <think>"}, {"role": "user", "content": "<think>"}]
        )
        assert ids.count(think) == 1
        assert renderer.decode(ids).count("<think>") == 2


def test_trusted_roles_can_be_configured(make_tokenizer):
    renderer = renderer_for(make_tokenizer("think", "bytes"), trusted_roles=["user"])
    ids = renderer.render_prompt([{"role": "user", "content": "<think>"}])
    assert ids.count(renderer.encoder.added["<think>"]) == 1


def test_repeated_prompt_renders_identically(make_tokenizer):
    renderer = renderer_for(make_tokenizer("chatml"))
    questions = [[{"role": "user", "content": f"{n} <tool_call> + 1?"}] for n in range(10)]
    ids = [renderer.render_prompt(question, TOOLS) for question in questions]
    fresh = [renderer_for(make_tokenizer("chatml")).render_prompt(question, TOOLS) for question in questions]
    assert ids == fresh
    ids[0].clear()
    assert renderer.render_prompt(questions[0], TOOLS) == fresh[0]


def test_cached_prompts_are_separate_for_each_tool_list(make_tokenizer):
    renderer = renderer_for(make_tokenizer("chatml"))
    question = [{"role": "user", "content": "hi"}]
    other = ({"type": "function", "function": {"name": "search", "parameters": {}}},)
    for _ in range(3):
        assert '"run"' in renderer.decode(renderer.render_prompt(question, TOOLS))
        assert '"search"' in renderer.decode(renderer.render_prompt(question, other))
        assert "<tools>" not in renderer.decode(renderer.render_prompt(question))


def test_caches_are_bounded(make_tokenizer):
    renderer = renderer_for(make_tokenizer("think", "bytes"))
    for n in range(600):
        renderer.render_prompt([{"role": "system", "content": str(n)}, {"role": "user", "content": str(n)}])
    assert max(renderer.cache_sizes) <= 256


def test_prompt_drops_past_thinking_like_the_template(make_renderer):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hmm"},
        {"role": "user", "content": "c"},
    ]
    assert "hmm" not in make_renderer("think").decode(make_renderer("think").render_prompt(messages))


def test_stream_keeps_its_thinking(make_renderer):
    """A user message makes the template drop past thinking; the append-only stream keeps it."""
    renderer = make_renderer("think")
    following = renderer.render_continuation([renderer.stop_token_ids[0]], [{"role": "user", "content": "c"}])
    assert renderer.decode(following.observation) == "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"


def test_template_options_are_applied(make_renderer):
    off = make_renderer("think", thinking=False)
    following = off.render_continuation([off.stop_token_ids[0]], result("1"))
    assert off.decode(following.observation).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert off.parse(off.encode("hello")).reasoning is None

    opened = make_renderer("think", open_think=True)
    assert opened.decode(opened.render_prompt([{"role": "user", "content": "q"}])).endswith("<think>\n")
    turn = opened.parse([*opened.encode("hm"), opened.encoder.added["</think>"], *opened.encode("\n\nyes")])
    assert (turn.reasoning, turn.content) == ("hm", "yes")


def test_parse_reads_ids_without_the_end_token(make_renderer):
    renderer = make_renderer("chatml")
    text = '<tool_call>{"name": "run", "arguments": {"x": "<|im_end|>"}}</tool_call>'
    ids = array("i", [*renderer.encoder.encode_rendered(text), renderer.stop_token_ids[0]])
    turn = renderer.parse(ids, call_id_prefix="t1_")
    assert turn.calls == (ToolCall("run", {"x": "<|im_end|>"}, "t1_0"),)
    assert renderer.parse(ids[:-1], complete=False).calls == ()
    assert renderer.parse([]).content == ""


def test_format_follows_the_template(make_renderer, make_tokenizer):
    call = "<tool_call><function=run><parameter=n>3</parameter></function></tool_call>"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tools = ({"type": "function", "function": {"name": "run", "parameters": schema}},)
    coder = make_renderer("coder")
    assert coder.parse(coder.encode(call), tools=tools).calls == (ToolCall("run", {"n": 3}, "call_0"),)
    forced = renderer_for(make_tokenizer("chatml"), tool_format="qwen3_coder")
    assert forced.parse(forced.encode(call), tools=tools).calls == (ToolCall("run", {"n": 3}, "call_0"),)
    with pytest.raises(UserError, match=r"no tool-call format 'hermez'\. Did you mean 'hermes'"):
        renderer_for(make_tokenizer("chatml"), tool_format="hermez")


@pytest.mark.parametrize(("template", "part"), [("numbered", "3 messages"), ("last_open", "<|im_end|> <|im_start|>")])
def test_template_that_rewrites_the_past_is_rejected(make_renderer, template, part):
    with pytest.raises(UserError, match="not prefix-stable") as error:
        make_renderer(template).render_continuation([1], [{"role": "user", "content": "more"}])
    assert part in str(error.value)


def test_template_without_end_of_turn_token_is_rejected(make_tokenizer):
    with pytest.raises(UserError, match="end-of-turn token"):
        renderer_for(make_tokenizer("endless"))


def test_template_that_hides_tools_is_rejected_every_time(make_tokenizer):
    renderer = renderer_for(make_tokenizer("bracket"))
    for _ in range(3):
        with pytest.raises(UserError, match="does not show the tools run"):
            renderer.render_prompt([{"role": "user", "content": "q"}], TOOLS)


def test_result_content_does_not_change_where_the_turn_ends(make_renderer):
    renderer = make_renderer("chatml")
    following = renderer.render_continuation([1], result("zAsstQkx7w"))
    assert "zAsstQkx7w" in renderer.decode(following.observation)


def test_tool_described_in_the_prompt_counts_as_shown(make_renderer):
    messages = [{"role": "system", "content": "You can run code."}, {"role": "user", "content": "q"}]
    assert make_renderer("bracket").render_prompt(messages, TOOLS)


@pytest.mark.slow
def test_threads_render_correctly_while_caches_are_full(make_tokenizer):
    renderer = TemplateRenderer(
        make_tokenizer("chatml"), call_format=None, trusted_roles=frozenset(), chat_template_kwargs={}, cache_size=2
    )
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            ask = [[{"role": "system", "content": f"{number}"}] for number in range(4000)]
            rendered = list(threads.map(renderer.render_prompt, ask))
    finally:
        sys.setswitchinterval(before)
    assert [renderer.render_prompt(messages) for messages in ask[::97]] == rendered[::97]


def test_template_errors_are_reported(make_renderer):
    calls = [{"id": "a", "type": "function", "function": {"name": "run", "arguments": {}}}] * 2
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    with pytest.raises(UserError, match=r"rejects .*\(user, assistant\).*one call a turn"):
        make_renderer("trimming").render_prompt(messages)


def test_images_require_a_template_that_shows_them(make_renderer, make_tokenizer):
    picture = Image.new("RGB", (56, 28))
    content = [{"type": "text", "text": "look <think>"}, {"type": "image", "image": picture}]
    with pytest.raises(UserError, match="cannot show one"):
        make_renderer("chatml").render_prompt([{"role": "user", "content": content}])
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{{ '[INST]' if part.type == 'image' else part.text }}{% endfor %}{% endif %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    messages = [{"role": "user", "content": content}]
    with pytest.raises(UserError, match="has no vision tower"):
        renderer_for(tokenizer).render_prompt(messages)
    pixel_format = PixelFormat(14, 2, 2, 1 / 255, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    image_token = tokenizer.convert_tokens_to_ids("[INST]")
    vision = ImageProcessor(pixel_format, SmartResize(28, 28 * 28), image_token_id=image_token)
    renderer = renderer_for(tokenizer, vision=vision)
    ids = renderer.render_continuation([END], messages).observation
    assert renderer.decode(ids) == "<|im_start|>user\nlook <think>[INST][INST]<|im_end|>\n<|im_start|>assistant\n"
    assert renderer.encoder.added["<think>"] not in ids
    assert renderer.encoder.added["[INST]"] in ids


def test_text_parts_render_as_text(make_renderer):
    renderer = make_renderer("chatml")
    parts = [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]
    assert renderer.render_continuation([END], result(parts)) == renderer.render_continuation([END], result("42"))
