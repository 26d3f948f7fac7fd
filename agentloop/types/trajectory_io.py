"""Write trajectories to JSON and JSONL files and read them.

The JSON form has a plain list of ids for each segment, so `jq` and people can read it. Logprobs are base64 of
little-endian float32, exact to the bit; versions are run-length encoded. A token takes about 8 bytes. Routed experts
are compressed with zlib. Each image is stored once, as PNG; after loading, messages and segments share it again.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np

from agentloop.errors import UserError
from agentloop.types.grammar import Grammar
from agentloop.types.image import PixelFormat, PlacedImage, SeenImage
from agentloop.types.limits import StopReason
from agentloop.types.plain_data import ImageTable, from_plain, to_plain
from agentloop.types.routed_experts import RoutedExperts
from agentloop.types.trajectory import SegmentKind, Trajectory

FORMAT_VERSION = 1
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError)
"""Errors of reading a file that is incomplete, as of an interrupted copy, or has been overwritten."""
_PLAIN_FIELDS = ("trajectory_id", "group_id", "reward", "turn_rewards", "failures", "metrics", "task", "error")


def to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """Return an object for `json.dumps`. Values of `task` and `metrics` that `to_plain` cannot convert become text."""
    images = ImageTable()
    head = _head(trajectory, images)
    ids = trajectory.ids
    logprobs, versions = trajectory.logprobs, trajectory.versions
    segments = []
    for segment in trajectory.segments:
        span = slice(segment.start, segment.end)
        entry: dict[str, Any] = {"kind": str(segment.kind), "ids": list(ids[span])}
        if segment.kind is SegmentKind.SAMPLED:
            entry["logprobs"] = to_plain(logprobs[span].astype("<f4").tobytes(), images)["$bytes"]
            entry["versions"] = [[key, sum(1 for _ in run)] for key, run in groupby(versions[span].tolist())]
        if segment.grammar is not None:
            entry["grammar"] = segment.grammar._asdict()
        if segment.images:
            entry["images"] = [_image_entry(image, segment.start, images) for image in segment.images]
        segments.append(entry)
    routed = {} if trajectory.routed is None else {"routed_experts": _routed_entry(trajectory.routed, images)}
    return {**head, "segments": segments, **routed, "images": images.as_base64()}


def from_dict(data: dict[str, Any]) -> Trajectory:
    """Return the trajectory that `to_dict` converted. Raises `UserError` for another format."""
    check_version(data)
    try:
        images = ImageTable.from_base64(data["images"])
        trajectory = _from_head(data, images)
        for entry in data["segments"]:
            kind = SegmentKind(entry["kind"])
            sampled: dict[str, Any] = {}
            if kind is SegmentKind.SAMPLED:
                raw = from_plain({"$bytes": entry["logprobs"]}, images)
                sampled["logprobs"] = array("f", np.frombuffer(raw, "<f4").astype(np.float32).tobytes())
                sampled["versions"] = [version for version, count in entry["versions"] for _ in range(count)]
                sampled["grammar"] = _grammar_of(entry.get("grammar"))
            shown = [_image_of(one, len(trajectory), images) for one in entry.get("images", ())]
            trajectory.append(kind, entry["ids"], images=shown, **sampled)
        if "routed_experts" in data:
            trajectory.add_routed(_routed_of(data["routed_experts"], images))
    except (KeyError, TypeError, ValueError, IndexError, zlib.error) as error:
        raise UserError(
            f"The data is not a complete trajectory: {type(error).__name__}: {error}. Write it again."
        ) from error
    return trajectory


def write_jsonl(path: str | Path, trajectories: Iterable[Trajectory], *, append: bool = False) -> int:
    """Write one trajectory per line, compressed if the name ends in .gz; return their number.

    Each line of a plain file is flushed, so a killed run keeps all finished lines. `append` first drops an incomplete
    last line. Raises `ValueError` for appending to a compressed file.
    """
    path = Path(path)
    if append:
        if path.suffix == ".gz":
            raise ValueError(f"{path} is compressed, so it cannot be appended to: write another file")
        _drop_torn_line(path)
    count = 0
    with _open(path, "at" if append else "wt") as file:
        for trajectory in trajectories:
            file.write(json.dumps(to_dict(trajectory), separators=(",", ":")) + "\n")
            file.flush()
            count += 1
    return count


def read_jsonl(path: str | Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file.

    Skips an incomplete last line, as a killed run leaves it. Raises `UserError` with the number of any other unreadable
    line, or for a damaged file.
    """
    with _open(Path(path), "rt") as file:
        try:
            yield from _read_lines(file, str(path))
        except DAMAGE as error:
            raise damaged(path, error) from error


def damaged(path: str | Path, error: Exception) -> UserError:
    """Return the error for a file whose reading raised one of `DAMAGE`."""
    return UserError(f"{path} is incomplete or damaged ({error}). Copy it again, or delete it.")


def same(first: Trajectory, second: Trajectory) -> bool:
    """Return whether two trajectories are equal; images are compared by pixels and logprobs by bits."""
    return to_dict(first) == to_dict(second)


def _head(trajectory: Trajectory, images: ImageTable) -> dict[str, Any]:
    """Return all fields except tokens. Images are numbered in the order of the stream, then of the messages."""
    for image in trajectory.images:
        _image_entry(image, 0, images)
    return {
        "format": FORMAT_VERSION,
        "place": trajectory.place,
        **{name: to_plain(getattr(trajectory, name), images) for name in _PLAIN_FIELDS},
        "stop_reason": None if trajectory.stop_reason is None else str(trajectory.stop_reason),
        "messages": to_plain(trajectory.messages, images),
        **({"role": trajectory.role} if trajectory.role else {}),
        **({} if trajectory.answer is None else {"answer": trajectory.answer}),
        **({"branches": [to_dict(branch) for branch in trajectory.branches]} if trajectory.branches else {}),
    }


def _grammar_of(entry: dict[str, Any] | None) -> Grammar | None:
    return None if entry is None else Grammar(str(entry["text"]), tuple(entry["stop_token_ids"]))


def _routed_entry(routed: RoutedExperts, images: ImageTable) -> dict[str, Any]:
    """Return the experts as compressed bytes, in the smallest type and layer by layer, which compresses best."""
    experts = routed.experts
    kind = "<u1" if experts.max(initial=0) < 256 else "<u2"
    content = zlib.compress(experts.transpose(1, 2, 0).astype(kind).tobytes())
    return {"shape": list(experts.shape), "type": kind, "zlib": to_plain(content, images)["$bytes"]}


def _routed_of(entry: dict[str, Any], images: ImageTable) -> RoutedExperts:
    tokens, layers, k = entry["shape"]
    content = zlib.decompress(from_plain({"$bytes": entry["zlib"]}, images))
    experts = np.frombuffer(content, entry["type"]).astype(np.int16).reshape(layers, k, tokens)
    return RoutedExperts(0, np.ascontiguousarray(experts.transpose(2, 0, 1)))


def _image_entry(image: Any, start: int, images: ImageTable) -> Any:
    """Return the entry of an image in the segment that begins at `start`: its number, and perhaps its position."""
    if not isinstance(image, PlacedImage):
        return images.number(image)
    seen = image.image
    number = images.number(seen, seen.as_pil)
    return {"image": number, "at": image.start - start, "format": asdict(seen.format)}


def _image_of(entry: Any, start: int, images: ImageTable) -> Any:
    """Return the image that `_image_entry` converted to this entry."""
    if isinstance(entry, int):
        return images[entry]
    values = entry["format"]
    pixel_format = PixelFormat(**{**values, "mean": tuple(values["mean"]), "std": tuple(values["std"])})
    return PlacedImage(SeenImage(np.array(images[entry["image"]]), pixel_format), start + entry["at"])


def _from_head(head: dict[str, Any], images: ImageTable) -> Trajectory:
    stop_reason = head["stop_reason"]
    return Trajectory(
        **{name: from_plain(head[name], images) for name in _PLAIN_FIELDS},
        stop_reason=None if stop_reason is None else StopReason(stop_reason),
        messages=from_plain(head["messages"], images),
        answer=head.get("answer"),
        role=head.get("role", ""),
        place=head.get("place", 0),
        branches=[from_dict(branch) for branch in head.get("branches", ())],
    )


def check_version(data: Any) -> None:
    """Raise `UserError` unless `data` is a stored trajectory that this version can read."""
    found = data.get("format") if isinstance(data, dict) else None
    if found != FORMAT_VERSION:
        raise UserError(
            f"This trajectory has format {found!r}; this version of agentloop reads {FORMAT_VERSION}. Use the version "
            "that wrote it, or write it again."
        )


def _read_lines(file: TextIO, path: str) -> Iterator[Trajectory]:
    for number, line in enumerate(file, 1):
        if not line.endswith("\n"):
            return
        try:
            data = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number} is not JSON: {error}. Delete the line.") from error
        try:
            yield from_dict(data)
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}") from error


def _open(path: Path, mode: str) -> TextIO:
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, mode, encoding="utf-8", compresslevel=3))
    return cast(TextIO, path.open(mode, encoding="utf-8"))


def _drop_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = position = file.seek(0, os.SEEK_END)
        while position:
            step = min(position, 1 << 16)
            file.seek(position - step)
            found = file.read(step).rfind(b"\n")
            if found >= 0:
                position += found + 1 - step
                break
            position -= step
        if position != size:
            file.truncate(position)
