"""`SharedWeights` as JSON, so that a process that receives them does not unpickle untrusted data."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from agentloop.weights.buckets import DeviceHandle, Handle, HostHandle
from agentloop.weights.shelf import Part, Place, SharedWeights

_CLASSES = (0, 4, 5)
"""Indices of arguments of torch's `rebuild_cuda_tensor` that are classes, equal for every bucket; they are not sent."""


def to_json(shared: SharedWeights) -> str:
    """Return weights as JSON."""
    parts = [[part.shelf, part.stamp, [_handle_to(handle) for handle in part.buckets]] for part in shared.parts]
    return json.dumps({"parts": parts, "places": shared.places})


def from_json(text: str) -> SharedWeights:
    """Read the output of `to_json`. Raises `ValueError` for other text."""
    try:
        data = json.loads(text)
        parts = [
            Part(_text(shelf), _number(stamp), tuple(map(_handle_from, buckets)))
            for shelf, stamp, buckets in data["parts"]
        ]
        places = [
            Place(_text(name), _dtype(dtype), tuple(map(_number, shape)), _number(bucket), _number(start))
            for name, dtype, shape, bucket, start in data["places"]
        ]
    except (TypeError, LookupError, RecursionError) as error:
        raise ValueError(f"not a description of shared weights ({type(error).__name__}: {error})") from error
    return SharedWeights(tuple(parts), tuple(places))


def _handle_to(handle: Handle) -> dict[str, Any]:
    if isinstance(handle, HostHandle):
        return {"host": handle}
    arguments = [each for place, each in enumerate(handle.arguments) if place not in _CLASSES]
    return {"device": [{"bytes": b64encode(each).decode()} if isinstance(each, bytes) else each for each in arguments]}


def _handle_from(data: dict[str, Any]) -> Handle:
    if "host" in data:
        pid, descriptor, size = map(_number, data["host"])
        return HostHandle(pid, descriptor, size)
    import torch
    from torch.storage import TypedStorage

    arguments = [_argument(each) for each in data["device"]]
    for place, each in zip(_CLASSES, (torch.Tensor, TypedStorage, torch.uint8), strict=True):
        arguments.insert(place, each)
    return DeviceHandle(tuple(arguments))


def _argument(data: Any) -> Any:
    if isinstance(data, dict):
        return b64decode(data["bytes"], validate=True)
    return tuple(map(_number, data)) if isinstance(data, list) else _number(data)


def _number(data: Any) -> int:
    if not isinstance(data, int):
        raise TypeError(f"{data!r:.60} is not an integer")
    return data


def _text(data: Any) -> str:
    if not isinstance(data, str):
        raise TypeError(f"{data!r:.60} is not a string")
    return data


def _dtype(data: Any) -> str:
    import torch

    if not isinstance(getattr(torch, _text(data), None), torch.dtype):
        raise TypeError(f"{data!r:.60} is not a dtype")
    return _text(data)
