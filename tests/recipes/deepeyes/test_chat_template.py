"""The template of the full run: tools and pictures, token for token what Qwen2.5 and Qwen2.5-VL write."""

from pathlib import Path

from PIL import Image

from agentloop.recipes.deepeyes.tiny_model import build_model
from agentloop.rendering import renderer_for
from agentloop.tools.toolset import Toolset
from agentloop.tools.vision.zoom import ImageZoomIn
from agentloop.types.messages import ToolCall

TEMPLATE = Path(__file__).parents[3] / "recipes" / "deepeyes" / "chat_template.jinja"
IMAGE = {"type": "image", "image": Image.new("RGB", (56, 56))}
SHOWN = "<|vision_start|><|image_pad|><|image_pad|><|image_pad|><|image_pad|><|vision_end|>"


def test_call_and_its_image_render_as_in_qwen(tmp_path):
    renderer = renderer_for(build_model(tmp_path / "model"), chat_template=TEMPLATE)
    schemas = Toolset([ImageZoomIn()]).schemas
    question = {"role": "user", "content": [IMAGE, {"type": "text", "text": "What is it?"}]}
    prompt = renderer.decode(renderer.render_prompt([{"role": "system", "content": "Look."}, question], schemas))
    assert prompt.startswith("<|im_start|>system\nLook.\n\n# Tools\n\nYou may call one or more functions")
    assert '<tools>\n{"type": "function", "function": {"name": "image_zoom_in_tool"' in prompt
    assert prompt.endswith(f"<|im_end|>\n<|im_start|>user\n{SHOWN}What is it?<|im_end|>\n<|im_start|>assistant\n")
    call = ToolCall("image_zoom_in_tool", {"bbox_2d": [0, 0, 28, 28]}, id="c")
    written = '{"name": "image_zoom_in_tool", "arguments": {"bbox_2d": [0, 0, 28, 28]}}'
    turn = f"<think>\nCloser.\n</think>\n\n<tool_call>\n{written}\n</tool_call>"
    sampled = [*renderer.encoder.encode_rendered(turn), renderer.stop_token_ids[0]]
    parsed = renderer.parse(sampled, tools=schemas, call_id_prefix="c")
    assert [(found.name, found.arguments) for found in parsed.calls] == [(call.name, call.arguments)]
    result = {"role": "tool", "content": [{"type": "text", "text": "Zoomed in."}, IMAGE]}
    continuation = renderer.render_continuation(sampled, [result], schemas)
    assert renderer.decode(continuation.closing + continuation.observation) == (
        f"\n<|im_start|>user\n<tool_response>\nZoomed in.{SHOWN}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_missing_system_message_gets_the_default(tmp_path):
    renderer = renderer_for(build_model(tmp_path / "model"), chat_template=TEMPLATE)
    prompt = renderer.decode(renderer.render_prompt([{"role": "user", "content": "Hi"}]))
    assert prompt == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
