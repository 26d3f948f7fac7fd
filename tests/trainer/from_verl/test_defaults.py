"""Compare defaults.yaml with verl's own defaults."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

import agentloop.trainer.from_verl as from_verl
from agentloop.trainer.from_verl.config import VerlConfig
from agentloop.trainer.from_verl.sources import VERSION, read
from agentloop.trainer.from_verl.unread import unread

_SWITCHED_ON = (
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=True",
    "algorithm.filter_groups.enable=True",
    "algorithm.rollout_correction={rollout_is: token, rollout_is_threshold: 2, rollout_rs: token_k1}",
    "algorithm.rollout_correction.rollout_rs_threshold=2",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
    "actor_rollout_ref.model.lora.rank=8",
    "actor_rollout_ref.rollout.multi_turn.enable=True",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
    "reward.sandbox_fusion.url=u",
)
"""Overrides that make the converter read all keys it knows."""


@pytest.fixture
def configs(verl_package: Path) -> Path:
    assert verl_package.name == f"verl-{VERSION}"
    return verl_package / "verl" / "trainer" / "config"


@pytest.mark.parametrize(
    ("engine", "file"), [("dp", "_generated_ppo_trainer.yaml"), ("megatron", "_generated_ppo_megatron_trainer.yaml")]
)
@pytest.mark.parametrize("overrides", [(), _SWITCHED_ON], ids=["as it is", "switched on"])
def test_every_key_that_is_read_has_the_default_of_verl(configs: Path, engine: str, file: str, overrides: tuple[str]):
    ours = read([f"model_engine={engine}", "trainer.nnodes=1", *overrides])
    theirs = VerlConfig(OmegaConf.load(configs / file))
    for part in from_verl.PARTS:
        part(ours)
    unread(ours)
    set_here = {override.partition("=")[0] for override in overrides}
    differ = {
        key: (_plain(theirs, key), _plain(ours, key))
        for key in ours.read_keys
        if not any(key.startswith(each) for each in set_here)
        and _plain(theirs, key) not in (None, {}, _plain(ours, key))
    }
    # Megatron's optimizer keys may differ, but only with the megatron engine.
    assert {key for key in differ if ".optim." not in key} <= {"actor_rollout_ref.rollout.name"}
    assert not differ or engine == "megatron" or set(differ) <= {"actor_rollout_ref.rollout.name"}


def _plain(verl: VerlConfig, key: str) -> Any:
    value = OmegaConf.select(verl.values, key)
    plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    return {k: v for k, v in plain.items() if k != "_target_"} if isinstance(plain, dict) else plain


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("fully_async_ppo_trainer", "fully_async_policy/config/fully_async_ppo_trainer.yaml"),
        ("fully_async_ppo_megatron_trainer", "fully_async_policy/config/fully_async_ppo_megatron_trainer.yaml"),
        ("one_step_off_ppo_trainer", "one_step_off_policy/config/one_step_off_ppo_trainer.yaml"),
        ("one_step_off_ppo_megatron_trainer", "one_step_off_policy/config/one_step_off_ppo_megatron_trainer.yaml"),
    ],
)
def test_defaults_of_asynchronous_trainers(verl_package: Path, name: str, file: str):
    ours = read(["-m", "verl.trainer.main_ppo", f"--config-name={name}", "trainer.nnodes=1"])
    theirs = OmegaConf.load(verl_package / "verl" / "experimental" / file)
    for part in from_verl.PARTS:
        part(ours)
    keys = {key for key in _leaves(OmegaConf.to_container(theirs)) if key in ours.read_keys}
    assert keys
    for key in keys:
        assert OmegaConf.select(ours.values, key) == OmegaConf.select(theirs, key), key
    assert ("megatron" in name) == (ours.get("actor_rollout_ref.actor.strategy") == "megatron")


def _leaves(config: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def test_keys_that_are_read_are_not_listed_as_without_effect():
    """A key that is read changes the config, so no_effect.txt must not match it."""
    verl = read(["trainer.nnodes=1", *_SWITCHED_ON])
    for part in from_verl.PARTS:
        part(verl)
    nothing_read = VerlConfig(verl.values, frozenset({"actor_rollout_ref.actor.clip_ratio_high", "data.nonsense"}))
    assert unread(nothing_read) == ["actor_rollout_ref.actor.clip_ratio_high", "data.nonsense"]


def test_every_key_of_the_defaults_is_read():
    read_keys: set[str] = set()
    for overrides in ([], _SWITCHED_ON, ["model_engine=megatron"], ["trainer.v1.trainer_mode=separate_async"]):
        verl = read(["trainer.nnodes=1", *overrides])
        for part in from_verl.PARTS:
            part(verl)
        unread(verl)
        read_keys |= verl.read_keys
    file = Path(from_verl.__file__).with_name("defaults.yaml")
    known = _leaves(yaml.safe_load(file.read_text())["configs"]["ppo_trainer"])
    assert [key for key in known if not any(key == each or key.startswith(f"{each}.") for each in read_keys)] == []
