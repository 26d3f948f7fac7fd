import torch
from safetensors.torch import load_file

from agentloop.weights.files import checkpoint_shapes, write_weights


def test_weights_go_through_one_file_with_their_names_and_shapes(tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    weights = [("a", shared), ("tied", shared), ("view", shared.T), ("half", torch.ones(4, dtype=torch.bfloat16))]
    write_weights(weights, tmp_path / "model.safetensors", None)
    loaded = load_file(tmp_path / "model.safetensors")
    assert loaded.keys() == {"a", "tied", "view", "half"}
    for name, tensor in weights:
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
    assert checkpoint_shapes(tmp_path) == {"a": (2, 3), "tied": (2, 3), "view": (3, 2), "half": (4,)}
    (tmp_path / "model.safetensors").unlink()
    assert checkpoint_shapes(tmp_path) is None
