"""Untrusted images are rejected before they do harm, or decoded as upright RGB."""

import base64
import io
import struct
import tracemalloc
import zlib

import pytest
from PIL import Image

from agentloop.errors import UserError
from agentloop.gateway.dialects.chat import read_messages
from agentloop.gateway.turns.errors import ApiError
from agentloop.tools.mcp.content import as_content
from agentloop.vision.decoding import ImageBudget, load_image


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def bomb(side: int) -> bytes:
    """Return a small PNG of side x side pixels, one bit each."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    row = bytes(1 + (side + 7) // 8)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    body = zlib.compress(row * side, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


red = Image.new("RGB", (40, 30), "red")


def test_images_of_a_request_share_a_number_of_pixels():
    images = ImageBudget()
    for _ in range(2):
        assert images.load(bomb(6_000)).size == (6_000, 6_000)
    with pytest.raises(UserError, match="28,000,000 are left for all images"):
        images.load(bomb(6_000))
    assert images.load(red).size == (40, 30)


def test_images_of_one_conversation_share_a_number_of_pixels():
    url = "data:image/png;base64," + base64.b64encode(bomb(6_000)).decode()
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    with pytest.raises(ApiError, match="left for all images together"):
        read_messages([message] * 6)


def test_images_of_one_tool_result_share_a_number_of_pixels():
    image = {"type": "image", "data": base64.b64encode(bomb(6_000)).decode()}
    assert [part["type"] for part in as_content([image] * 4)] == ["image", "image", "text", "text"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_supported_formats_decode(kind):
    image = load_image(encoded(red, kind))
    assert (image.mode, image.size) == ("RGB", (40, 30))
    assert image.getpixel((5, 5))[0] > 250


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "LAB", "HSV"])
def test_all_modes_become_rgb(mode):
    image = load_image(Image.new("RGB", (8, 8), "white").convert("L" if mode == "LAB" else mode))
    assert (image.mode, image.getpixel((0, 0))) == ("RGB", (255, 255, 255))


def test_sixteen_bit_values_are_scaled():
    image = load_image(encoded(Image.new("I;16", (4, 4), 32768), "PNG"))
    assert image.getpixel((0, 0)) == (128, 128, 128)


def test_transparency_is_blended_onto_white():
    assert load_image(encoded(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "PNG")).getpixel((0, 0)) == (255, 255, 255)


def test_exif_rotation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert load_image(encoded(red, "JPEG", exif=exif)).size == (30, 40)


def test_first_frame_of_an_animation_is_used():
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    image = load_image(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert image.getpixel((0, 0)) == (255, 0, 0)


def test_accepted_image_inputs(tmp_path):
    png = encoded(red, "PNG")
    path = tmp_path / "red.wrong_ending"
    path.write_bytes(png)
    uri = "data:image/png;base64," + base64.b64encode(png).decode()
    for source in (png, path, str(path), {"bytes": png, "path": None}, {"bytes": None, "path": str(path)}, uri, red):
        assert load_image(source).size == (40, 30)


@pytest.mark.parametrize("side", [13_000, 20_000])
def test_decompression_bomb_is_rejected_from_its_header(side):
    content = bomb(side)
    assert len(content) < 100_000
    tracemalloc.start()
    with pytest.raises(UserError, match=r"pixels|too large"):
        load_image(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"not an image", "unknown format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "unknown format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "unknown format"),
        (b"%PDF-1.4\n", "unknown format"),
        ("http://169.254.169.254/latest", "not fetched"),
        ("file:///etc/passwd", "not fetched"),
        ("/nowhere/at/all.png", "cannot be read"),
        ("data:image/png;base64,@@@", "not base64"),
        (17, "got int"),
        ({"bytes": None}, "got NoneType"),
    ],
)
def test_non_images_are_rejected(source, message):
    with pytest.raises(UserError, match=message):
        load_image(source)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_truncated_files_are_rejected(kind):
    noise = Image.effect_noise((200, 200), 80).convert("RGB")
    content = encoded(noise, kind)
    with pytest.raises(UserError):
        load_image(content[: len(content) // 2])


@pytest.mark.parametrize("kind", [b"IHDR", b"IDAT", b"IEND"])
def test_png_with_a_broken_checksum_is_called_that(kind):
    written = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(written, "PNG")
    damaged = bytearray(written.getvalue())
    start = damaged.index(kind)
    length = int.from_bytes(damaged[start - 4 : start], "big")
    damaged[start + 4 + length] ^= 1
    with pytest.raises(UserError, match=f"a PNG with a broken checksum: its chunk {kind.decode()} is damaged"):
        load_image(bytes(damaged))
    assert load_image(written.getvalue()).size == (8, 8)


def test_a_damaged_optional_part_is_not_called_an_unknown_format():
    damaged = encoded(red, "PNG", dpi=(72, 72)).replace(b"pHYs", b"pHYr")
    with pytest.raises(UserError, match=r"^The image is a damaged PNG file\. Write it again\.$"):
        load_image(damaged)
