"""The config on the page about supervised fine-tuning is one."""

import re
from pathlib import Path

import yaml

from agentloop.config.fine_tuning import FineTuningConfig
from agentloop.config.loading import validated

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "sft.md"


def test_the_config_of_the_page_is_valid():
    [block] = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    config = validated(FineTuningConfig, yaml.safe_load(block), str(PAGE))
    assert (config.run.epochs, config.data.tools[0].name, config.learner.loss) == (2, "code_interpreter", "sft")
