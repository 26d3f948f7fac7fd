from agentloop.trainer.workers.lengths import LengthMemory
from agentloop.types.requests import RolloutRequest


def order(row, split="train"):
    return RolloutRequest(group_id=f"{split}{row}", row=row, n=4, seed=0, split=split)


def test_tasks_keep_their_length_and_unknown_tasks_have_the_average():
    lengths = LengthMemory()
    assert lengths.expect(order(0)) == 0
    lengths.learn(order(0), 1000)
    lengths.learn(order(1), 100)
    assert lengths.expect(order(0)) == 1000
    assert lengths.expect(order(1)) == 100
    assert lengths.expect(order(2)) == lengths.expect(order(0, "eval")) == 550


def test_the_newest_group_counts_half():
    lengths = LengthMemory()
    for longest in (1000, 200):
        lengths.learn(order(0), longest)
    assert lengths.expect(order(0)) == 600
    assert lengths.expect(order(1)) == 600
