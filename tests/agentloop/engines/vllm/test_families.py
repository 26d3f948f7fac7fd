"""vLLM samples from small models of many families with the log-probabilities of transformers, before and after updates.

What vLLM for CPU cannot run is in the table of docs/reference/models.md, with vLLM's message.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import family_table

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[4]


def _compared(families: list[str]) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "tests.support.vllm_families", *families]
    done = subprocess.run(command, cwd=_ROOT, env=os.environ, stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"family"')]
    found = {line.pop("family"): line for line in lines}
    assert set(found) == set(families)
    return found


def _check(result: dict[str, Any]) -> None:
    assert family_table.vllm_is_exact(result), result
    assert result["old_weights"] > 0.1, "an update without effect would pass unnoticed"


def test_experts_sinks_and_recurrent_layers_are_exact_after_an_update():
    found = _compared(["qwen3_moe", "gpt_oss", "falcon_h1", "lfm2", "minimax_m2"])
    for result in found.values():
        _check(result)
    assert found["qwen3_moe"]["cached_tokens"] > 0


@pytest.mark.ecosystem
def test_every_family_of_the_table_is_exact_after_an_update():
    exact = [
        name
        for name, result in family_table.read()["families"].items()
        if "vllm" in result and family_table.vllm_is_exact(result["vllm"])
    ]
    for result in _compared(exact).values():
        _check(result)
