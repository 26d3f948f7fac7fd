"""Episodes with images: in the prompt, as tool results, too large, broken, and on text models."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.datasets.rows import read_row
from agentloop.envs.tool_env import ToolEnv
from agentloop.episodes.fitting import fit_content
from agentloop.episodes.loop import AgentLoop
from agentloop.recipes.tiny.model import build_model
from agentloop.registry.named_objects import load_object
from agentloop.rendering import renderer_for
from agentloop.tools.base import ToolResult
from agentloop.tools.function import tool
from agentloop.tools.toolset import Toolset
from agentloop.tools.vision.zoom import ImageZoomIn
from agentloop.types.image import PlacedImage
from agentloop.types.limits import Limits, StopReason
from agentloop.types.messages import text_of
from agentloop.types.trajectory import SegmentKind, Trajectory
from agentloop.types.trajectory_io import read_jsonl, same, write_jsonl

_MODELS = Path(__file__).parents[1] / "vision" / "models.py"
build_vision_model = load_object(f"{_MODELS}:build_vision_model", "function")
picture = load_object(f"{_MODELS}:picture", "function")


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    return renderer_for(build_vision_model(tmp_path_factory.mktemp("model"), "qwen2_5_vl", max_pixels=112 * 112))


@pytest.fixture(scope="module")
def text_renderer(tmp_path_factory):
    return renderer_for(build_model(tmp_path_factory.mktemp("text")))


class Watching(ScriptedEngine):
    """Says what it is told to, and keeps the images that it was shown."""

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        self.seen = [*getattr(self, "seen", []), (list(prompt), list(images))]
        return await super().generate(prompt, params, trajectory_id=trajectory_id)


async def play(renderer, tools, calls, *, images=(), limits=None):
    """One episode in which the model makes `calls` (name, arguments as JSON) and then answers."""
    texts = [f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>' for name, arguments in calls]
    end = renderer.stop_token_ids[0]
    engine = Watching([[*renderer.encoder.encode_rendered(text), end] for text in [*texts, "done"]])
    row = read_row({"prompt": "<image>" * len(images) + "What is it?", "images": list(images)}, "row", 0)
    env = ToolEnv(row, toolset=Toolset(tools), reward=lambda trajectory, task: 1.0)
    trajectory = await AgentLoop(engine, renderer, limits=limits).run(env, trajectory_id="t")
    return trajectory, engine


async def test_segments_have_their_images(renderer):
    source = picture(448, 224)  # seen as 140 x 84
    zoom = ImageZoomIn(family="qwen2_5_vl", max_pixels=112 * 112)
    call = ("image_zoom_in_tool", '{"bbox_2d": [0, 0, 70, 84]}')
    trajectory, engine = await play(renderer, [zoom], [call], images=[source])
    assert trajectory.stop_reason is StopReason.COMPLETED
    kinds = {segment.kind: segment for segment in trajectory.segments if segment.images}
    assert set(kinds) == {SegmentKind.PROMPT, SegmentKind.OBSERVATION}
    token = renderer.vision.image_token_id
    for segment in kinds.values():
        [image] = segment.images
        assert segment.start <= image.start < image.end <= segment.end
        assert set(trajectory.ids[image.start : image.end]) == {token}
    assert (trajectory.token_ids == token).sum() == sum(image.end - image.start for image in trajectory.images)
    # The crop is of the source, in its full resolution: half of 448 x 224.
    crop = source.crop((0, 0, 224, 224))
    expected = renderer.vision.see(zoom.crop(source, [0, 0, 70, 84])).digest
    assert trajectory.images[1].image.digest == expected
    assert np.array_equal(np.array(crop.resize((112, 112))), trajectory.images[1].image.pixels)
    assert [len(images) for _, images in engine.seen] == [1, 2]
    assert engine.seen[1][1] == trajectory.images


async def test_episodes_of_a_group_share_the_image_of_the_prompt(renderer):
    row = read_row({"prompt": "<image>?", "images": [picture(90, 90)]}, "row", 0)
    end = renderer.stop_token_ids[0]
    loop = AgentLoop(ScriptedEngine([[*renderer.encode("x"), end]]), renderer)
    envs = [ToolEnv(row, toolset=Toolset([]), reward=lambda trajectory, task: 1.0) for _ in range(2)]
    first, second = [await loop.run(env, trajectory_id=str(number)) for number, env in enumerate(envs)]
    assert first.images[0].image is second.images[0].image


@tool
async def look(width: int, height: int) -> ToolResult:
    """Look."""
    return ToolResult([{"type": "text", "text": "See"}, {"type": "image", "image": Image.new("RGB", (width, height))}])


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        ('{"width": 9000, "height": 20}', "no side is more than 200 times the other"),
        ('{"width": 112, "height": 112}', "112 x 112 pixels omitted: it takes 16 tokens, but only 12 are left"),
    ],
)
async def test_a_note_replaces_a_result_that_cannot_be_shown(renderer, arguments, note):
    limits = Limits(max_observation_tokens=12)
    trajectory, _ = await play(renderer, [look], [("look", arguments)], limits=limits)
    assert trajectory.stop_reason is StopReason.COMPLETED
    [result] = [message for message in trajectory.messages if message["role"] == "tool"]
    assert note in text_of(result["content"])
    assert not trajectory.images


async def test_a_tiny_image_is_enlarged(renderer):
    trajectory, _ = await play(renderer, [look], [("look", '{"width": 1, "height": 1}')])
    assert trajectory.images[0].image.num_tokens >= 1


async def test_texts_share_the_room_that_whole_images_leave(renderer):
    seen = Image.new("RGB", (112, 112))
    content = [
        {"type": "text", "text": "a b c " * 50},
        {"type": "image", "image": seen},
        {"type": "image", "image": seen},
    ]
    fitted = await fit_content(content, 100, renderer)
    assert [part["type"] for part in fitted] == ["text", "image", "image"]
    assert 0 < len(renderer.encode(fitted[0]["text"])) <= 100 - 32
    fitted = await fit_content(content, 20, renderer)
    assert [part["type"] for part in fitted] == ["text", "image", "text"]
    assert "it takes 16 tokens, but only 4 are left" in fitted[2]["text"]


async def test_an_observation_without_room_omits_its_image(renderer):
    limits = Limits(max_tokens=300)
    trajectory, _ = await play(renderer, [look], [("look", '{"width": 112, "height": 112}')] * 9, limits=limits)
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert len(trajectory) <= 300
    assert all(image.end <= len(trajectory) for image in trajectory.images)


async def test_text_models_get_a_note_instead_of_an_image(text_renderer):
    trajectory, _ = await play(text_renderer, [look], [("look", '{"width": 56, "height": 56}')])
    assert trajectory.stop_reason is StopReason.COMPLETED
    [result] = [message for message in trajectory.messages if message["role"] == "tool"]
    assert "this model takes no images" in text_of(result["content"])


async def test_a_prompt_with_an_image_ends_its_episode_on_a_text_model(text_renderer):
    trajectory, _ = await play(text_renderer, [], [], images=[picture(56, 56)])
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert "cannot show one" in trajectory.error


async def test_trajectories_with_images_are_written_and_read(renderer, tmp_path):
    call = ("look", '{"width": 112, "height": 56}')
    trajectory, _ = await play(renderer, [look], [call], images=[picture(90, 60)])
    write_jsonl(tmp_path / "t.jsonl", [trajectory])
    [back] = read_jsonl(tmp_path / "t.jsonl")
    assert same(back, trajectory)
    for image, expected in zip(back.images, trajectory.images, strict=True):
        assert (image.start, image.image.digest) == (expected.start, expected.image.digest)


def test_an_image_outside_of_its_segment_is_refused(renderer):
    trajectory = Trajectory()
    trajectory.append(SegmentKind.PROMPT, [1, 2, 3])
    image = renderer.vision.see(Image.new("RGB", (56, 56)))
    for start in (2, 5):
        with pytest.raises(ValueError, match="are free"):
            trajectory.append(SegmentKind.OBSERVATION, [9] * 5, images=[PlacedImage(image, start)])
    assert len(trajectory) == 3
    trajectory.append(SegmentKind.OBSERVATION, [9] * 5, images=[PlacedImage(image, 3)])
