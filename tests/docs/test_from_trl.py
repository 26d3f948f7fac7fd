"""The table for users of TRL names arguments that TRL has, and keys that we have."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import yaml

from agentloop.cli.config import keys
from agentloop.config.run import RunConfig

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from" / "trl.md").read_text()


def rows(heading: str) -> list[tuple[str, str]]:
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0].partition("| `loss_type` | `learner` |")[0]
    return re.findall(r"^\| (`.*?`) \| (`.*?`) \|", section, re.MULTILINE)


@pytest.mark.slow  # imports trl
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_trl_has_the_arguments():
    from trl import GRPOConfig, GRPOTrainer

    known = {
        "Arguments of GRPOTrainer": set(inspect.signature(GRPOTrainer.__init__).parameters),
        "Arguments of GRPOConfig": {field.name for field in dataclasses.fields(GRPOConfig)},
    }
    for heading, names in known.items():
        listed = {name for left, _ in rows(heading) for name in re.findall(r"`(\w+)`", left)}
        assert len(listed) > 5
        assert listed - names == set(), heading
    example = set(re.findall(r"(\w+)=", PAGE.partition("GRPOConfig(")[2].partition(")")[0]))
    assert example
    assert example <= known["Arguments of GRPOConfig"]


@pytest.mark.slow  # imports trl
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_config_has_the_defaults_of_trl_where_ours_differ(tmp_path: Path):
    from trl import GRPOConfig

    theirs = GRPOConfig(str(tmp_path), num_generations=8, use_cpu=True, bf16=False)
    ours = RunConfig.model_validate(yaml.safe_load(PAGE.partition("```yaml\n")[2].partition("```")[0]))
    assert ours.algorithm.group_size * ours.algorithm.groups_per_step == theirs.generation_batch_size
    assert ours.learner.lr_schedule == theirs.lr_scheduler_type
    assert ours.learner.loss_options == {"clip_high": theirs.epsilon, "dual_clip": theirs.delta}
    assert (theirs.epsilon_high, theirs.gradient_checkpointing) == (None, True)
    assert (theirs.vllm_importance_sampling_mode, theirs.vllm_importance_sampling_clip_max) == ("sequence_mask", 3.0)


def test_we_have_the_keys():
    known = {key.name for key in keys()}
    listed = {
        name
        for heading in ("GRPOTrainer", "GRPOConfig")
        for _, right in rows(f"Arguments of {heading}")
        for name in re.findall(r"`([\w.]+)`", right)
    }
    assert len(listed - {"learner"}) > 40
    assert {name for name in listed if "." in name or name == "model"} - known == set()
