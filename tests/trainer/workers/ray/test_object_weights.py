import pickle

import pytest
import torch

from agentloop.trainer.workers.ray.object_weights import chunks, weights_of

pytestmark = pytest.mark.slow


def test_weights_come_back_bit_for_bit_in_chunks_of_bounded_size():
    torch.manual_seed(0)
    weights = [
        ("a", torch.randn(3, 4).bfloat16()),
        ("b", torch.randn(5)),
        ("c", torch.tensor(2.5)),
        ("large", torch.randn(100)),
        ("transposed", torch.randn(4, 6).T),
        ("tied", torch.arange(4.0)),
    ]
    sent = list(chunks(weights, max_bytes=64))
    assert [[entry.name for entry in chunk] for chunk in sent] == [["a", "b", "c"], ["large"], ["transposed"], ["tied"]]
    back = weights_of(pickle.loads(pickle.dumps(sent)))
    assert [name for name, _ in back] == [name for name, _ in weights]
    for (_, before), (_, after) in zip(weights, back, strict=True):
        assert after.dtype == before.dtype
        assert after.shape == before.shape
        assert torch.equal(after, before)


def test_weights_on_the_host_are_not_copied_before_they_are_sent():
    weight = torch.zeros(4)
    ((entry,),) = chunks([("w", weight)])
    weight.fill_(1)
    assert weights_of([[entry]])[0][1].tolist() == [1, 1, 1, 1]
