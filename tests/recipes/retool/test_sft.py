import pytest

from agentloop.recipes.hub_data import write_rows
from agentloop.recipes.retool.sft import train
from agentloop.recipes.retool.tiny_task import START, cold_start_trace

pytestmark = pytest.mark.slow


def test_cold_start_lowers_the_loss(tmp_path):
    import random

    rng = random.Random(0)
    rows = [{"messages": cold_start_trace(rng)} for _ in range(12)]
    write_rows(tmp_path / "sft.jsonl", rows)
    losses = []
    folder = train(
        START,
        str(tmp_path / "sft.jsonl"),
        tmp_path / "model",
        epochs=3,
        batch_size=4,
        lr=1e-3,
        max_tokens=1024,
        on_update=lambda done, total, loss: losses.append((done, total, loss)),
        device="cpu",
    )
    assert [done for done, _, _ in losses] == list(range(1, 10))
    assert losses[-1][1] == 9
    assert sum(loss for *_, loss in losses[-3:]) < 0.7 * sum(loss for *_, loss in losses[:3])
    assert (folder / "model.safetensors").is_file()
