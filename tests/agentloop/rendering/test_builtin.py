"""The chat templates that come with agentloop: they write what the published ones of TRL's wheel write.

`test_families` has their other properties: calls are read back, and the stream is the template's own text.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.config.loading import validated
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.rendering import renderer_for
from agentloop.rendering.builtin import BUILTIN
from tests.support.model_families import FAMILIES, TOOLS, renderer_of, template_of

PUBLISHED = {"hermes": "qwen2_5", "llama3": "llama3_1", "qwen3": "qwen3"}
RUN = {"model": "m", "data": {"train": "t"}, "env": {"reward": "exact"}}

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=9).map(lambda text: f"a{text}z")
calls = st.builds(
    lambda city, days: {"type": "function", "function": {"name": "f", "arguments": {"city": city, "days": days}}},
    texts,
    st.integers(),
)


@st.composite
def conversations(draw, most_calls):
    """A system message, then questions, each with some calls, their results and an answer."""
    messages = [{"role": "system", "content": draw(texts)}]
    for _ in range(draw(st.integers(1, 2))):
        messages.append({"role": "user", "content": draw(texts)})
        if made := draw(st.lists(calls, max_size=most_calls)):
            messages.append({"role": "assistant", "content": draw(st.just("") | texts), "tool_calls": made})
            messages += [{"role": "tool", "content": draw(texts)} for _ in made]
        messages.append(
            {"role": "assistant", "content": draw(texts | texts.map("<think>\nHm.\n</think>\n\n{}".format))}
        )
    return messages[: draw(st.integers(2, len(messages)))]


@pytest.mark.parametrize("name", BUILTIN)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_text_is_that_of_the_published_template(name, data):
    tokenizer = renderer_of(f"builtin:{name}").tokenizer
    messages = data.draw(conversations(1 if name == "llama3" else 3))
    tools = data.draw(st.sampled_from([None, list(TOOLS)]))
    is_prompt = data.draw(st.booleans())
    ours, published = (
        tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=is_prompt, chat_template=template_of(each)
        )
        for each in (f"builtin:{name}", PUBLISHED[name])
    )
    assert ours == published


def test_every_template_has_a_family():
    assert {f"builtin:{name}" for name in BUILTIN} <= set(FAMILIES)


def test_template_without_tools_names_both_ways_out(make_tokenizer, tmp_path):
    tokenizer = make_tokenizer("bracket")
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    question = [{"role": "user", "content": "hi"}]
    with pytest.raises(UserError, match=r"builtin:hermes or builtin:qwen3, or to a file .*; or set model to a model"):
        renderer_for(tokenizer, tool_format="hermes").render_prompt(question, TOOLS)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(
        UserError, match=r"has no chat template: .* Either set rendering.chat_template to builtin:hermes"
    ):
        renderer_for(tmp_path)
    shown = renderer_for(tmp_path, chat_template="builtin:hermes")
    assert json.dumps(TOOLS[0]["function"]["name"]) in shown.decode(shown.render_prompt(question, TOOLS))
    with pytest.raises(UserError, match=r"builtin:llama3, but the tokenizer of .* has no <\|start_header_id\|> or"):
        renderer_for(tmp_path, chat_template="builtin:llama3")


def test_unknown_template_is_refused_when_the_config_is_read():
    assert validated(RunConfig, RUN | {"rendering": {"chat_template": "builtin:qwen3"}}, "x").rendering.chat_template
    with pytest.raises(UserError, match="Did you mean 'hermes'"):
        validated(RunConfig, RUN | {"rendering": {"chat_template": "builtin:hermse"}}, "x")
