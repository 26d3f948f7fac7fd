"""`import agentloop` is light: heavy packages load when they are used."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

HEAVY = ("torch", "ray", "vllm", "transformers")


def heavy_modules_after(statement: str, heavy: tuple[str, ...] = HEAVY) -> str:
    code = f"{statement}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_agentloop_imports_nothing_heavy():
    assert heavy_modules_after("import agentloop") == "[]"


def test_every_public_name_is_there_and_light():
    everything = "import agentloop\nfor name in agentloop.__all__: getattr(agentloop, name)"
    assert heavy_modules_after(everything) == "[]"


def test_the_engines_protocol_is_light():
    assert heavy_modules_after("import agentloop.engines, agentloop.episodes.worker, agentloop.cli") == "[]"


def test_a_learner_imports_no_compiler_before_it_compiles():
    assert heavy_modules_after("import agentloop.trainer.learner.fsdp.learner", ("torch._inductor.compile_fx",)) == "[]"
