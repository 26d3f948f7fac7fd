"""Fixtures of a run of sums: a scripted model, a real tool, a learner that really learns."""

from pathlib import Path

from agentloop.loading import load_object

_FIXTURES = Path(__file__).parent / "sums" / "fixtures.py"
sums_model = load_object(f"{_FIXTURES}:sums_model", "fixture")
sums = load_object(f"{_FIXTURES}:sums", "fixture")
