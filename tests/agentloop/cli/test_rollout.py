import json

import pytest

from agentloop.api.figures import pass_at_k, summary
from agentloop.cli import main
from agentloop.types.requests import Group, RolloutRequest
from agentloop.types.trajectory import Trajectory
from agentloop.types.trajectory_io import read_jsonl

pytestmark = pytest.mark.slow


def agentloop(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


def test_rollout_plays_the_held_out_tasks_and_writes_them(sums, capsys):
    assert agentloop("rollout", sums, "-n", 4, "--output", sums / "out") == 0
    trajectories = list(read_jsonl(sums / "out" / "trajectories.jsonl"))
    assert len(trajectories) == 3 * 4
    assert sorted(trajectory.trajectory_id for trajectory in trajectories)[0] == "rollout-0-0"
    figures = json.loads((sums / "out" / "summary.json").read_text())
    assert figures["mean reward"] == pytest.approx(sum(t.reward for t in trajectories) / 12)
    assert figures["pass@4"] >= figures["pass@1"] == pytest.approx(figures["mean reward"])
    shown = capsys.readouterr().out
    assert "pass@4" in shown
    assert "completed" in shown


def test_rollout_of_training_tasks_with_a_limit(sums, capsys):
    assert agentloop("rollout", sums, "--tasks", "train", "--limit", 2, "--output", sums / "the out") == 0
    assert len(list(read_jsonl(sums / "the out" / "trajectories.jsonl"))) == 2
    assert f"view them: agentloop view '{sums}/the out'" in capsys.readouterr().out


@pytest.mark.parametrize("threshold", ["nan", "inf"])
def test_a_threshold_that_is_no_number_is_refused(sums, capsys, threshold):
    assert agentloop("rollout", sums, "--threshold", threshold, "--output", sums / "out") == 2
    assert f"threshold is {threshold}, but pass@k needs a number" in capsys.readouterr().err
    assert not (sums / "out").exists()


def test_a_folder_with_another_rollout_is_refused(sums, capsys):
    (sums / "out").mkdir()
    (sums / "out" / "trajectories.jsonl").write_text("")
    assert agentloop("rollout", sums, "--output", sums / "out") == 2
    assert "Set output to another folder, or resume that rollout if it was stopped." in capsys.readouterr().err


def test_a_file_in_place_of_the_folder_is_refused(sums, capsys):
    (sums / "out").touch()
    assert agentloop("rollout", sums, "--output", sums / "out") == 2
    assert "out cannot be written to: Not a directory." in capsys.readouterr().err


def test_the_folder_of_a_training_run_is_refused(sums, capsys):
    (sums / "run" / "checkpoints").mkdir(parents=True)
    (sums / "run" / "config.yaml").write_text("")
    assert agentloop("rollout", sums, "--output", sums / "run") == 2
    assert "is the folder of a training run. Set output to another folder." in capsys.readouterr().err


def test_failing_rewards_are_reported_and_do_not_count_as_zero(sums, capsys):
    reward = f"env.reward={sums}/sums.py:broken_reward"
    assert agentloop("rollout", sums, reward, "--output", sums / "out") == 1
    figures = json.loads((sums / "out" / "summary.json").read_text())
    assert "mean reward" not in figures
    assert "3 times: the reward raised ZeroDivisionError: division by zero" in capsys.readouterr().out


HELD = """
from pathlib import Path
from agentloop.envs.rewards import Reward

class Held(Reward):
    async def start(self):
        self.life = ["start"]

    async def shutdown(self):
        Path(__file__).with_name("life").write_text(" ".join([*self.life, "shutdown"]))

    async def __call__(self, trajectory, task):
        self.life.append("call")
        return {"reward": 1.0, "length": len(trajectory)}
"""


def test_a_reward_of_several_terms_lives_as_long_as_the_run(sums):
    (sums / "held.py").write_text(HELD)
    reward = f"env.reward=[{{name: {sums}/held.py:Held, weight: 2.0}}, {{name: exact, weight: 0.0}}]"
    assert agentloop("rollout", sums, reward, "--output", sums / "out") == 0
    trajectories = list(read_jsonl(sums / "out" / "trajectories.jsonl"))
    assert {trajectory.reward for trajectory in trajectories} == {2.0}
    for trajectory in trajectories:
        assert trajectory.metrics["reward/Held"] == 1.0
        assert trajectory.metrics["reward/Held/length"] == len(trajectory)
    assert (sums / "life").read_text() == "start call call call shutdown"


def test_an_unknown_key_of_a_reward_term_is_reported(sums, capsys):
    assert agentloop("rollout", sums, "env.reward=[{name: exact, wieght: 2}]", "--output", sums / "out") == 2
    assert "There is no key 'env.reward.0.wieght'. Did you mean 'weight'?" in " ".join(capsys.readouterr().err.split())


def test_pass_at_k_is_the_probability_that_one_of_k_episodes_succeeds():
    # 1 of 4 is solved: 2 of the 4 contain it with probability 1 - C(3,2)/C(4,2) = 1/2.
    assert pass_at_k([[1.0, 0.0, 0.0, 0.0]], 2, threshold=1.0) == 0.5
    assert pass_at_k([[1.0, 0.0], [0.0, 0.0]], 1, threshold=1.0) == 0.25
    assert pass_at_k([[0.4, 0.6]], 2, threshold=0.5) == 1.0


def test_summary_leaves_unjudged_episodes_out():
    groups = [
        Group(RolloutRequest(group_id="a", row=0, n=2, seed=0), [Trajectory(reward=1.0), Trajectory(reward=0.0)]),
        Group(RolloutRequest(group_id="b", row=0, n=2, seed=0), [Trajectory(reward=0.0), Trajectory(reward=None)]),
    ]
    figures = summary(groups, threshold=1.0)
    assert figures["mean reward"] == pytest.approx(1 / 3)
    assert figures["pass@1"] == 0.25
    assert figures["pass@2"] == 1.0  # of the one task that has two rewards
    assert figures["tasks in pass@2"] == 1.0
    assert "tasks in pass@1" not in figures
    assert figures["judged"] == 3
