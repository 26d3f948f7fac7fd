"""The tiny task: what is asked cannot be seen at first, a zoomed field shows it, and the traces are real episodes."""

import random

import numpy as np
import pytest

from agentloop.envs.datasets.rows import read_row
from agentloop.recipes.deepeyes.tiny_model import MAX_PIXELS, build_model
from agentloop.recipes.deepeyes.tiny_task import (
    COLOURS,
    PLACES,
    WEAVES,
    box_of,
    draw_image,
    held_out_rows,
    trace,
    train_rows,
    zoom_tool,
)
from agentloop.rendering import renderer_for
from agentloop.rendering.conversation import conversation_trajectory
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import images_of


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    return renderer_for(build_model(tmp_path_factory.mktemp("model")))


def seen_pixels(renderer, image):
    return renderer.vision.see(image).pixels.astype(int)


def test_weaves_are_visible_only_in_a_zoomed_field(renderer):
    images = {weave: draw_image(random.Random(1), list(COLOURS), [weave] * 4) for weave in WEAVES}
    whole = {weave: seen_pixels(renderer, image) for weave, image in images.items()}
    plain = whole.pop("plain")
    assert plain.shape == (112, 112, 3)
    for weave, pixels in whole.items():
        assert np.abs(pixels - plain).max() <= 2, weave  # of 255
    crops = {weave: seen_pixels(renderer, zoom_tool().crop(one, box_of(3))) for weave, one in images.items()}
    for weave in whole:
        for other in WEAVES:
            assert weave == other or np.abs(crops[weave] - crops[other]).mean() > 10


@pytest.mark.parametrize("field", range(4))
def test_box_matches_its_field(renderer, field):
    weaves = ["plain"] * 4
    weaves[field] = "rows"
    image = draw_image(random.Random(2), list(COLOURS), weaves)
    crop = zoom_tool().crop(image, box_of(field))
    assert crop.size[0] * crop.size[1] <= MAX_PIXELS
    rows = np.array(crop).astype(int)
    assert (rows[40, 20:90] != rows[41, 20:90]).all()
    assert (rows[40, 20:90] == rows[42, 20:90]).all()


def test_rows_are_repeatable_and_held_out_rows_differ():
    first, again = ([row["images"][0]["bytes"] for row in train_rows(8)] for _ in range(2))
    assert first == again
    assert not set(first) & {row["images"][0]["bytes"] for row in held_out_rows(8)}
    row = read_row(next(train_rows(1)), "row", 0)
    assert row["answer"] in WEAVES
    assert len(images_of(row["messages"])) == 1


def test_traces_place_images_where_the_model_sees_them(renderer):
    rng = random.Random(0)
    schemas = Toolset([zoom_tool()]).schemas
    trajectories = [conversation_trajectory(trace(rng), renderer, schemas) for _ in range(20)]
    assert {len(trajectory.images) for trajectory in trajectories} == {1, 2}
    for trajectory in trajectories:
        tokens = (trajectory.token_ids == renderer.vision.image_token_id).sum()
        assert tokens == 16 * len(trajectory.images)


def test_trace_names_the_field_it_zooms_into(renderer):
    rng = random.Random(0)
    schemas = Toolset([zoom_tool()]).schemas
    looks = 0
    for messages in (trace(rng) for _ in range(40)):
        trajectory = conversation_trajectory(messages, renderer, schemas)
        first = next(trajectory.sampled_segments())
        parsed = renderer.parse(trajectory.token_ids[first.start : first.end].tolist(), tools=schemas)
        for call in parsed.calls:
            looks += 1
            place = parsed.reasoning.strip().removeprefix("The ").removesuffix(" one.")
            assert call.arguments["bbox_2d"] == box_of(PLACES.index(place))
    assert looks > 20
