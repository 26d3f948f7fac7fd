"""Fixtures of a run of sums, see tests/trainer/sums."""

from pathlib import Path

from agentloop.loading import load_object

_FIXTURES = Path(__file__).parents[2] / "trainer" / "sums" / "fixtures.py"
sums_model = load_object(f"{_FIXTURES}:sums_model", "fixture")
sums = load_object(f"{_FIXTURES}:sums", "fixture")
