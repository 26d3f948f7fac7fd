"""What an engine of a run is made with."""

from pathlib import Path

import pytest
import torch

from agentloop.config.loading import load_config
from agentloop.config.resolved import Facts, resolve
from agentloop.config.run import RunConfig
from agentloop.engines.hf.engine import HfEngine
from agentloop.trainer.workers.factory import local_engine


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        (["engine.options={device: cpu}"], torch.float32),
        (["engine.options={device: cpu}", "learner.compute_dtype=bfloat16"], torch.bfloat16),
        (["engine.options={device: cpu, dtype: float32}", "learner.compute_dtype=bfloat16"], torch.float32),
    ],
)
def test_the_hf_engine_computes_in_what_the_learner_does(sums, options, dtype):
    config = load_config(RunConfig, sums / "config.yaml", ["engine.name=hf", *options])
    engine = local_engine(resolve(config, Facts(model=Path(config.model))))
    assert isinstance(engine, HfEngine)
    assert engine._dtype == dtype
