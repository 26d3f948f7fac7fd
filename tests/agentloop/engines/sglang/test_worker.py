"""What SGLang's schedulers accept as an order to load weights."""

import os
import pickle
from base64 import b64decode, b64encode

import pytest
import torch

from agentloop.engines.sglang.worker import answers_in, load, order
from agentloop.weights.shelf import WeightShelf


class _Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class _Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))

    def load_weights(self, weights):
        for _, tensor in weights:
            self.weight.data.copy_(tensor)


def test_an_order_loads_weights(tmp_path):
    model, shelf = _Model(), WeightShelf()
    shared = shelf.put([("weight", torch.tensor([1.0, 2.0, 3.0]))])
    descriptor = os.memfd_create("answers")
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    load(model, pickle.loads(b64decode(order(shared, path))))
    with open(path) as file:
        (answer,) = answers_in(file.read())
    os.close(descriptor)
    assert (answer.way, model.weight.tolist()) == ("loader", [1.0, 2.0, 3.0])


@pytest.mark.parametrize("kind", ["pickled", "text", "json", "another file"])
def test_the_name_of_a_tensor_runs_no_code_and_writes_no_file(tmp_path, kind, caplog):
    shared = WeightShelf().put([("weight", torch.ones(3))])
    name = {
        "pickled": b64encode(pickle.dumps((_Evil(tmp_path / "made"), "answers"))).decode(),
        "text": "__import__('os').mkdir('made')",
        "json": '{"weights": "[]", "answers": "/proc/1/fd/1"}',
        "another file": pickle.loads(b64decode(order(shared, tmp_path / "made")))[0][0],
    }[kind]
    model = _Model()
    load(model, [(name, torch.empty(0))])
    assert list(tmp_path.iterdir()) == []
    assert (model.weight.tolist(), "New weights are refused" in caplog.text) == ([0.0] * 3, True)
