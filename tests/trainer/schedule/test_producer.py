"""The episodes that the producer counts as trained when the groups of a step are selected."""

import json
from collections import Counter

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.envs.sampler import TaskSampler
from agentloop.trainer.schedule.observers import Observer
from agentloop.trainer.schedule.producer import Producer
from agentloop.trainer.schedule.queue import TrajectoryQueue
from agentloop.trainer.schedule.staleness_metrics import LengthBias
from agentloop.trainer.staleness.policy import StalenessPolicy
from agentloop.types.limits import StopReason
from agentloop.types.requests import Group, RolloutRequest
from agentloop.types.trajectory import SegmentKind, Trajectory


class FullWorkers:
    policy_version = 2

    def room(self):
        return 0


def episode(version, tokens):
    trajectory = Trajectory(reward=1.0, metrics={"seconds": float(tokens)})
    trajectory.append(SegmentKind.PROMPT, [1, 2])
    trajectory.append(SegmentKind.SAMPLED, [3] * tokens, logprobs=[-0.5] * tokens, versions=[version] * tokens)
    return trajectory


def test_an_episode_whose_tokens_are_all_masked_is_not_trained_in_the_bias(sums):
    partial = "staleness={mode: partial, max_staleness: 1, when_late: mask}"
    config = load_config(RunConfig, sums / "config.yaml", [partial, "algorithm={groups_per_step: 1, group_size: 2}"])
    producer = Producer(config, FullWorkers(), TaskSampler(1), Observer())
    producer.queue.version = 2
    queued = producer.queue.admit(RolloutRequest(group_id="a", row=0, n=2, seed=0), 0)
    group = Group(queued.request, [episode(0, tokens=30), episode(1, tokens=10)])
    producer.queue.finish(queued, group, Counter())
    assert producer.select().trained == [group]
    assert producer.bias.metrics(producer.queue, now=0.0) == {"bias/tokens": 10 / 20, "time/bias_seconds": 10 / 20}
    assert producer.queue.counts["trained"] == 2
    resumed = LengthBias()
    resumed.load_state_dict(json.loads(json.dumps(producer.bias.state_dict(producer.queue))))
    assert resumed.metrics(producer.queue, now=0.0) == {"bias/tokens": 10 / 20, "time/bias_seconds": 10 / 20}


def test_a_group_to_play_again_is_not_in_the_saved_bias():
    queue, bias = TrajectoryQueue(StalenessPolicy.preset("on_policy", groups_per_step=1)), LengthBias()
    played, failed = (queue.admit(RolloutRequest(group_id=n, row=0, n=3, seed=0), 0) for n in "ab")
    bias.ended([episode(0, tokens=10)], is_trained=True)
    for queued, last in ((played, episode(0, tokens=10)), (failed, Trajectory(stop_reason=StopReason.COMPLETED))):
        queue.finish(queued, Group(queued.request, [episode(0, tokens=10), last]), Counter(surplus=1))
        queued.seconds = 4.0
        bias.aborted(1, queued.seconds)
    assert bias.state_dict(queue)["aborted"] == {"num": 1, "seconds": 4.0, "tokens": 0}
