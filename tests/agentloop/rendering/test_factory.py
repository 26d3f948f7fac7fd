"""Loading a renderer from a folder, and the errors if that fails."""

import json
import subprocess
import sys

import pytest

from agentloop.errors import UserError
from agentloop.rendering import renderer_for


def test_saved_folder_renders_like_the_tokenizer(tmp_path, make_tokenizer):
    tokenizer = make_tokenizer("chatml")
    tokenizer.save_pretrained(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    assert renderer_for(tmp_path).render_prompt(messages) == renderer_for(tokenizer).render_prompt(messages)
    assert renderer_for(str(tmp_path)).stop_token_ids == renderer_for(tokenizer).stop_token_ids


def test_folder_without_chat_template_raises(tmp_path, make_tokenizer):
    make_tokenizer(None).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"no chat template: .*chat_template\.jinja"):
        renderer_for(tmp_path)


def test_folder_without_tokenizer_raises(tmp_path):
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        renderer_for(tmp_path)


def test_broken_tokenizer_file_raises(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UserError, match="Cannot load a tokenizer"):
        renderer_for(tmp_path)


def test_slow_tokenizer_raises():
    with pytest.raises(UserError, match="not a fast tokenizer"):
        renderer_for(object())


@pytest.mark.slow
def test_package_import_loads_no_heavy_modules():
    heavy = ("torch", "transformers", "tokenizers")
    code = f"import agentloop.rendering, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("listed", "more"), [([5, 6], (5, 6)), (7, (7,)), (None, ())])
def test_all_end_tokens_of_a_model_end_a_turn(make_tokenizer, tmp_path, listed, more):
    """Base models end a text with <|endoftext|>, whatever their template writes."""
    make_tokenizer("chatml").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}))
    renderer = renderer_for(tmp_path)
    end, eos = renderer.encoder.added["<|im_end|>"], renderer.encoder.added["<|endoftext|>"]
    assert renderer.stop_token_ids == (end, eos, *more)
    assert renderer.parse([*renderer.encode("done"), eos]).content == "done"


def test_turn_that_ended_with_the_end_of_text_is_closed_as_the_template_does(make_tokenizer):
    renderer = renderer_for(make_tokenizer("chatml"))
    end, eos = renderer.stop_token_ids
    question = [{"role": "user", "content": "more"}]
    line_break = renderer.encode("\n")
    assert renderer.render_continuation([end], question).closing == line_break
    assert renderer.render_continuation([eos], question).closing == [end, *line_break]
