"""Rows with images, as verl's datasets have them."""

import gc
import io
import json
import pickle
import weakref

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from agentloop.envs.datasets.dataset import load_dataset
from agentloop.envs.datasets.rows import read_row
from agentloop.envs.tool_env import ToolEnv
from agentloop.errors import UserError
from agentloop.types.messages import images_of, text_of
from agentloop.types.trajectory import Trajectory
from agentloop.types.trajectory_io import to_dict
from agentloop.vision.row_image import RowImage


def png(color, size=(6, 4)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, "PNG")
    return buffer.getvalue()


def verl_row(*colors, content="<image>What is this? <image>"):
    images = [{"bytes": png(color), "path": None} for color in colors]
    return {
        "data_source": "vstar",
        "prompt": [{"role": "system", "content": "Look."}, {"role": "user", "content": content}],
        "images": images,
        "reward_model": {"style": "model", "ground_truth": "a square"},
        "extra_info": {"index": 3, "tools_kwargs": {"image_zoom_in_tool": {"create_kwargs": {"image": images[0]}}}},
    }


async def shown(row):
    return list((await ToolEnv(row).reset()).messages)


async def test_verl_placeholders_become_the_images_in_order(tmp_path):
    parquet.write_table(pa.Table.from_pylist([verl_row("red", "blue")]), tmp_path / "d.parquet")
    (row,) = load_dataset(str(tmp_path / "d.parquet"))
    system, user = await shown(row)
    assert system == {"role": "system", "content": "Look."}
    assert [part["type"] for part in user["content"]] == ["image", "text", "image"]
    assert [image.getpixel((0, 0)) for image in images_of([user])] == [(255, 0, 0), (0, 0, 255)]
    assert text_of(user["content"]) == "What is this? "
    assert (row["answer"], row["id"], row["data_source"]) == ("a square", "3", "vstar")


async def test_images_stay_undecoded_and_are_not_written(tmp_path):
    row = read_row(verl_row("red", "blue"), "d.parquet, row 1", 0)
    assert all(isinstance(image, RowImage) for image in row["images"])
    own = row["extra_info"]["tools_kwargs"]["image_zoom_in_tool"]["create_kwargs"]["image"]
    assert own is row["images"][0]
    row.pop("prompt")
    written = json.dumps(to_dict(Trajectory(task=row)))
    assert "<d.parquet, row 1: image 2>" in written
    assert len(written) < 2000


async def test_group_shares_one_image():
    row = read_row(verl_row("red", content="<image>"), "d", 0)
    first, second = await shown(row), await shown(row)
    assert images_of(first)[0] is images_of(second)[0]


def test_image_is_freed_after_its_episodes_and_can_be_pickled():
    (stored,) = read_row(verl_row("red", content="<image>"), "d", 0)["images"]
    reference = weakref.ref(stored.load())
    gc.collect()
    assert reference() is None
    assert pickle.loads(pickle.dumps(stored)).load().getpixel((0, 0)) == (255, 0, 0)


async def test_paths_are_relative_to_the_dataset_folder(tmp_path, monkeypatch):
    (tmp_path / "data" / "images").mkdir(parents=True)
    (tmp_path / "data" / "images" / "a.png").write_bytes(png("lime"))
    line = {"prompt": [{"role": "user", "content": "See <image>"}], "images": ["images/a.png"]}
    path = tmp_path / "data" / "d.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps(line | {"images": [{"path": "images/a.png"}]}) + "\n")
    monkeypatch.chdir(tmp_path)
    for row in load_dataset("data/d.jsonl"):
        assert images_of(await shown(row))[0].getpixel((0, 0)) == (0, 255, 0)


async def test_image_parts_of_chat_messages_are_read():
    image = Image.new("RGB", (3, 3), "red")
    parts = [
        {"type": "image", "image": image, "text": None},
        {"type": "text", "text": "and", "image": None},
        {"type": "image", "image": None, "text": None},
    ]
    row = read_row({"messages": [{"role": "user", "content": parts}], "images": [png("blue")]}, "d", 0)
    first, text, second = (await shown(row))[0]["content"]
    assert (first["image"].getpixel((0, 0)), second["image"].getpixel((0, 0))) == ((255, 0, 0), (0, 0, 255))
    assert text == {"type": "text", "text": "and"}


def test_image_placeholder_in_a_row_without_images_stays_text():
    row = read_row({"prompt": "The tag <image> of HTML"}, "d", 0)
    assert row["messages"] == [{"role": "user", "content": "The tag <image> of HTML"}]


def test_an_image_in_the_column_image_is_not_left_out():
    row = {"prompt": "<image>Which color?", "image": "red.png"}
    with pytest.raises(UserError, match=r"row 1: .* 'image' in place of 'images'\. Rename"):
        read_row(row, "row 1", 0)
    assert read_row(row | {"prompt": "Which color?"}, "row 1", 0)["image"] == "red.png"  # a column of the user's own


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (verl_row("red"), "2 placeholders for images .*'images' has 1"),
        (verl_row("red", content="no place"), "0 placeholders for images .*'images' has 1"),
        ({"prompt": "<image>", "images": "a.png"}, "'images' must be a list of images, got str"),
        ({"prompt": "<image>", "images": ["nothing.png"]}, "image 1: there is no file nothing.png"),
        ({"prompt": "<image>", "images": [{"height": 3}]}, "neither 'bytes' nor 'path'"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "empty image parts"),
        ({"prompt": [{"role": "user", "content": [{"type": "audio"}]}]}, "part 1 must have the 'type' text"),
        ({"prompt": "Hi", "videos": ["a.mp4"]}, "'videos' are not supported"),
    ],
)
def test_unmatched_images_name_the_row(raw, words):
    with pytest.raises(UserError, match=f"d, row 7.*{words}"):
        read_row(raw, "d, row 7", 6)


async def test_broken_image_fails_its_row_at_episode_start():
    row = read_row({"prompt": "<image>", "images": [png("red")[:40]]}, "d, row 7", 6)
    with pytest.raises(UserError, match=r"d, row 7: image 1: .* (cannot be decoded|is a damaged PNG file)"):
        await shown(row)
