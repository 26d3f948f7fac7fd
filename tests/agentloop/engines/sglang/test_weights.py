import pytest
import safetensors.torch
import torch

from agentloop.engines.sglang.weights import FileTransport
from agentloop.errors import EngineError
from agentloop.weights.tensors import TensorWeights


@pytest.mark.parametrize("fails", ["names", "disk"])
async def test_failed_weight_write_leaves_no_file(tmp_path, monkeypatch, fails):
    def full(tensors, path):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    transport = FileTransport({"a": (2,)}, "model", tmp_path)
    with pytest.raises(EngineError if fails == "names" else OSError):
        await transport.prepare(TensorWeights([("a" if fails == "disk" else "b", torch.ones(2))]))
    assert list(tmp_path.iterdir()) == []
