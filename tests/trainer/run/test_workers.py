"""Tests of how a run makes its engine and workers."""

from pathlib import Path

import pytest
import torch

from agentloop.config.loading import load_config
from agentloop.config.resolved import Facts, resolve
from agentloop.config.run import RunConfig
from agentloop.engines.hf.engine import HfEngine
from agentloop.trainer.run.workers import local_engine

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        (["engine.options={device: cpu}"], torch.float32),
        (["engine.options={device: cpu}", "learner.compute_dtype=bfloat16"], torch.bfloat16),
        (["engine.options={device: cpu, dtype: float32}", "learner.compute_dtype=bfloat16"], torch.float32),
    ],
)
def test_the_hf_engine_computes_in_the_dtype_of_the_learner(sums, options, dtype):
    config = load_config(RunConfig, sums / "config.yaml", ["engine.name=hf", *options])
    engine = local_engine(resolve(config, Facts(model=Path(config.model))))
    assert isinstance(engine, HfEngine)
    assert engine.dtype == dtype
