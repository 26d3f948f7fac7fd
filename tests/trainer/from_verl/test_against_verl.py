"""A converted config computes the same numbers as verl's own functions with the original config."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from agentloop.config.learner import LearnerConfig
from agentloop.trainer import advantages, losses
from agentloop.trainer.advantages import Outcome
from agentloop.trainer.from_verl import convert
from agentloop.trainer.from_verl.sources import read
from agentloop.trainer.objective.objective import Objective
from agentloop.types.trajectory import SegmentKind, Trajectory
from tests.support.tokens import tokens as tokens_of

COUNTS = (3, 1, 5, 2)
"""Sampled tokens of four trajectories."""

LOSSES = {
    "as it is": "",
    "clip higher": "actor.clip_ratio_low=0.1 actor.clip_ratio_high=0.4 actor.clip_ratio_c=1.5",
    "seq-mean-token-sum": "actor.loss_agg_mode=seq-mean-token-sum",
    "seq-mean-token-mean": "actor.loss_agg_mode=seq-mean-token-mean actor.entropy_coeff=0.01",
    "dr grpo": "actor.loss_agg_mode=seq-mean-token-sum-norm actor.loss_scale_factor=77",
    "kl": "actor.use_kl_loss=True actor.kl_loss_coef=0.2",
    "kl k2": "actor.use_kl_loss=True actor.kl_loss_coef=0.2 actor.kl_loss_type=mse",
    "gspo": "actor.policy_loss.loss_mode=gspo actor.clip_ratio_low=0.05 actor.clip_ratio_high=0.05",
    "gspo of sequences": "actor.policy_loss.loss_mode=gspo actor.loss_agg_mode=seq-mean-token-mean",
    "gmpo": "actor.policy_loss.loss_mode=geo_mean",
    "cispo": "actor.policy_loss.loss_mode=cispo actor.clip_ratio_low=10 actor.clip_ratio_high=0.2",
    "sapo": "actor.policy_loss.loss_mode=sapo actor.tau_neg=1.3",
    "gpg": "actor.policy_loss.loss_mode=gpg",
    "dppo tv": "actor.policy_loss.loss_mode=dppo_tv actor.clip_ratio_low=0.05 actor.clip_ratio_high=0.1",
    "dppo kl": "actor.policy_loss.loss_mode=dppo_kl actor.clip_ratio_low=0.01 actor.clip_ratio_high=0.02",
    "token weights": "correction.rollout_is=token correction.rollout_is_threshold=1.1",
    "sequence weights": "correction.rollout_is=sequence correction.rollout_is_threshold=1.2",
    "icepop": "correction.rollout_is=token correction.rollout_is_threshold=0.9_1.1",
    "bypass": "correction.bypass_mode=True",
    "bypass reinforce": "correction.bypass_mode=True correction.loss_type=reinforce correction.rollout_is=token "
    "correction.rollout_is_threshold=1.1",
}
REJECTIONS = {
    "token_k1": "correction.rollout_rs=token_k1 correction.rollout_rs_threshold=0.9_1.2",
    "seq_sum_k1": "correction.rollout_rs=seq_sum_k1 correction.rollout_rs_threshold=1.3",
    "seq_mean_k1": "correction.rollout_rs=seq_mean_k1 correction.rollout_rs_threshold=0.97_1.03",
    "token_k2": "correction.rollout_rs=token_k2 correction.rollout_rs_threshold=0.004",
    "token_k3": "correction.rollout_rs=token_k3 correction.rollout_rs_threshold=0.004",
}
ADVANTAGES = {
    "grpo": "",
    "grpo unscaled": "algorithm.norm_adv_by_std_in_grpo=False",
    "rloo": "",
    "opo": "",
    "gpg": "",
    "remax": "",
    "reinforce_plus_plus": "algorithm.gamma=0.9",
    "reinforce_plus_plus_baseline": "",
    "gae": "algorithm.gamma=0.95 algorithm.lam=0.9",
}

_THEIRS = """
import dataclasses, json, sys
from unittest.mock import MagicMock

for name in ("codetiming", "hydra", "hydra.utils", "orjson", "pylatexenc", "torchdata",
             "torchdata.stateful_dataloader"):
    sys.modules[name] = MagicMock()  # only parts of verl that are not used need these

import numpy as np, torch
from verl.trainer.config import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos as core
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config.actor import ActorConfig, PolicyLossConfig

def known(cls, values):
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name in names}

def padded(numbers, counts):
    rows = torch.zeros(len(counts), max(counts), dtype=torch.float64)
    rows[mask_of(counts)] = torch.tensor(numbers, dtype=torch.float64)
    return rows

def mask_of(counts):
    return torch.arange(max(counts))[None] < torch.tensor(counts)[:, None]

def loss(case):
    mask = mask_of(case["counts"])
    new, old, rollout, advantages, reference, entropy = (
        padded(case[name], case["counts"]) for name in ("new", "old", "rollout", "advantages", "reference", "entropy"))
    new.requires_grad_()
    correction, actor = RolloutCorrectionConfig(**case["correction"]), case["actor"]
    policy = known(PolicyLossConfig, actor.pop("policy_loss")) | {"rollout_correction": correction}
    fixed = {"rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, "policy_loss": PolicyLossConfig(**policy)}
    config = ActorConfig(**known(ActorConfig, actor) | fixed)
    batch = {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": len(mask),
             "loss_scale_factor": config.loss_scale_factor}
    object.__setattr__(config, "global_batch_info", batch)
    weights, kept, _ = compute_rollout_correction_and_rejection_mask(
        old, rollout, mask.double(), correction.rollout_is, correction.rollout_is_threshold,
        rollout_rs=correction.rollout_rs, rollout_rs_threshold=correction.rollout_rs_threshold)
    weights = None if weights is None else weights.batch["rollout_is_weights"]
    mode = policy["loss_mode"]
    if correction.bypass_mode:
        old, weights, mode = rollout, None, "bypass_mode"
    found, _ = core.get_policy_loss_fn(mode)(
        old_log_prob=old, log_prob=new, advantages=advantages, response_mask=mask.double(),
        loss_agg_mode=config.loss_agg_mode, config=config, rollout_is_weights=weights)
    found = found - config.entropy_coeff * core.agg_loss(entropy, mask.double(), config.loss_agg_mode, **batch)
    if config.use_kl_loss:
        kl = core.kl_penalty(new, reference, config.kl_loss_type)
        found = found + config.kl_loss_coef * core.agg_loss(kl, mask.double(), config.loss_agg_mode, **batch)
    found.backward()
    return {"loss": found.item(), "grad": new.grad[mask].tolist(), "kept": kept[mask].tolist()}

def advantage(case):
    counts, mask, ends = case["counts"], mask_of(case["counts"]).double(), torch.tensor(case["counts"]) - 1
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(len(counts)), ends] = torch.tensor(case["rewards"], dtype=torch.float64)
    given = {"token_level_rewards": rewards, "response_mask": mask}
    if case["name"] == "gae":
        given |= {"values": padded(case["values"], counts), "gamma": case["gamma"], "lam": case["lam"]}
    else:
        given |= {"index": np.array(case["index"]), "reward_baselines": torch.tensor(case["baselines"]).double(),
                  "norm_adv_by_std_in_grpo": case["scaled"], "config": type("C", (), {"gamma": case["gamma"]})}
        names = core.get_adv_estimator_fn(case["name"]).__code__.co_varnames
        given = {name: value for name, value in given.items() if name in names}
    values, returns = core.get_adv_estimator_fn(case["name"])(**given)
    return {"advantages": values[mask.bool()].tolist(), "returns": returns[mask.bool()].tolist()}

cases = json.load(sys.stdin)
json.dump({name: (loss if "actor" in case else advantage)(case) for name, case in cases.items()}, sys.stdout)
"""


def _command(short: str) -> list[str]:
    names = {"actor.": "actor_rollout_ref.actor.", "correction.": "algorithm.rollout_correction."}
    words = [*shlex.split(short), "data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    return [
        next((long + word[len(start) :] for start, long in names.items() if word.startswith(start)), word)
        for word in words
    ]


def _tokens(seed: int = 0) -> dict[str, Any]:
    """Return log-probabilities that differ as after some updates, with one advantage per trajectory."""
    random = np.random.default_rng(seed)
    total = sum(COUNTS)
    new = -random.gamma(1.0, 0.7, total) - 0.05
    old = np.minimum(new + random.normal(0, 0.3, total), -1e-3)
    rollout = np.minimum(old + random.normal(0, 0.15, total), -1e-3)
    return {
        "counts": list(COUNTS),
        "new": new.tolist(),
        "old": old.tolist(),
        "rollout": rollout.tolist(),
        "reference": (new + random.normal(0, 0.5, total)).tolist(),
        "entropy": random.gamma(2.0, 0.5, total).tolist(),
        "advantages": np.repeat([1.2, -0.7, -1.1, 0.4], COUNTS).tolist(),
    }


EPISODES = {
    "counts": [3, 1, 4, 2, 2, 3],
    "rewards": [1.0, 0.0, 0.5, 0.0, 0.0, 1.0],
    "index": [0, 0, 0, 1, 1, 1],
    "baselines": [0.25, 0.25, 0.25, 0.5, 0.5, 0.5],
    "values": np.random.default_rng(1).normal(0.3, 0.2, 15).tolist(),
}


@pytest.fixture(scope="module")
def theirs(verl_package: Path) -> dict[str, Any]:
    """Return verl's results for all cases, from one process because verl takes long to import."""
    cases: dict[str, Any] = {}
    for name, short in (LOSSES | REJECTIONS).items():
        values = read(_command(short)).values
        actor = OmegaConf.to_container(values.actor_rollout_ref.actor, resolve=True)
        correction = OmegaConf.to_container(values.algorithm.rollout_correction, resolve=True)
        cases[f"loss {name}"] = _tokens() | {"actor": actor, "correction": correction}
    for name, short in ADVANTAGES.items():
        algorithm = read(_command(short)).values.algorithm
        options = {"gamma": algorithm.gamma, "lam": algorithm.lam, "scaled": algorithm.norm_adv_by_std_in_grpo}
        cases[f"advantage {name}"] = EPISODES | options | {"name": name.split()[0]}
    path = os.pathsep.join([str(verl_package), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", _THEIRS],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout[run.stdout.index('{"loss') :])


def _objective(short: str) -> Objective:
    converted = convert(*_command(short))
    assert converted.lacks == []
    return Objective(LearnerConfig(model="m", **converted.config["learner"]))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_equal_those_of_verl(theirs: dict[str, Any], name: str):
    objective, case = _objective(LOSSES[name]), _tokens()
    config = objective.config
    how = config.aggregation or objective.loss.aggregation
    weights = np.repeat(losses.token_weights(COUNTS, how, config.aggregation_norm), COUNTS).tolist()
    given = {key: case[key] for key in ("rollout", "advantages", "old", "reference")}
    new = torch.tensor(case["new"], dtype=torch.float64, requires_grad=True)
    entropy = torch.tensor(case["entropy"], dtype=torch.float64)
    loss, _ = objective(new, entropy, tokens_of(COUNTS, weights=weights, **given))
    loss.backward()
    expected = theirs[f"loss {name}"]
    assert new.grad is not None
    np.testing.assert_allclose(new.grad.tolist(), expected["grad"], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(loss.item(), expected["loss"], rtol=1e-6)


@pytest.mark.parametrize("name", REJECTIONS)
def test_rejected_tokens_equal_those_of_verl(theirs: dict[str, Any], name: str):
    objective, case = _objective(REJECTIONS[name]), _tokens()
    tokens = tokens_of(COUNTS, **{key: case[key] for key in ("rollout", "advantages", "old")})
    _, metrics = objective(torch.tensor(case["new"]).double(), torch.zeros(sum(COUNTS)).double(), tokens)
    kept = theirs[f"loss {name}"]["kept"]
    assert 0 < sum(kept) < sum(COUNTS)
    assert (1 - metrics["rejected"]).tolist() == kept


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_equal_those_of_verl(theirs: dict[str, Any], name: str):
    estimator, _, _ = name.partition(" ")
    algorithm = convert(f"algorithm.adv_estimator={estimator}", *_command(ADVANTAGES[name])).config["algorithm"]
    advantage = advantages.get(algorithm["advantage"])
    options = advantages.parse_options(advantage, algorithm.get("advantage_options", {}))
    outcomes = _outcomes()
    found = advantage.function([outcomes[:3], outcomes[3:]], options)
    values = [value for group in found for value in group]
    flat = [np.broadcast_to(value, count) for value, count in zip(values, EPISODES["counts"], strict=True)]
    expected = theirs[f"advantage {name}"]
    np.testing.assert_allclose(np.concatenate(flat), expected["advantages"], rtol=1e-5, atol=1e-6)
    if advantage.value_targets is not None:
        targets = np.concatenate([advantage.value_targets(outcome, options) for outcome in outcomes])
        np.testing.assert_allclose(targets, expected["returns"], rtol=1e-5, atol=1e-6)


def _outcomes() -> list[Outcome]:
    ends = np.cumsum(EPISODES["counts"])
    found = []
    for count, end, reward, baseline in zip(
        EPISODES["counts"], ends, EPISODES["rewards"], EPISODES["baselines"], strict=True
    ):
        trajectory = Trajectory(reward=reward, turn_rewards=[0.0])
        trajectory.append(SegmentKind.PROMPT, [7])
        trajectory.append(SegmentKind.SAMPLED, [1] * count, logprobs=[-1.0] * count, versions=[0] * count)
        values = np.array(EPISODES["values"][end - count : end], dtype=np.float32)
        found.append(Outcome(trajectory, baseline=baseline, values=values))
    return found
