"""Published weights that are spread over ranks, with real ranks on CPUs."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.weights.sharded import owners

pytestmark = pytest.mark.slow

_SCRIPT = Path(__file__).parents[2] / "support" / "spread_on_ranks.py"
_BATCH = 64 << 10


def test_each_weight_is_on_one_rank_and_no_rank_holds_all(tmp_path: Path, run_on_ranks):
    ranks = 4
    run_on_ranks(ranks, _SCRIPT, tmp_path / "found")
    result = json.loads((tmp_path / "found").read_text())
    assert result["same"] == [True] * 4
    assert result["mapped again"]
    assert result["is of this process"]
    assert result["overwritten"]
    total = sum(result["parts"])
    assert max(result["parts"]) - min(result["parts"]) < 0.01 * total
    # First its part of the shelf, with what is lost at the ends of buckets; then only its shards of a batch, where the
    # same shards are replicated over two ranks half of it.
    assert all(first < total / 2 for first, *_ in result["peaks"])
    assert all(0 < later < total / 8 for _, *rest in result["peaks"] for later in rest)


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_owners_differ_by_no_more_than_the_largest_weight(sizes, ranks):
    found = owners(sizes, range(ranks))
    assert list(found) == list(sizes)
    loads = [sum(sizes[name] for name in sizes if found[name] == rank) for rank in range(ranks)]
    assert max(loads) - min(loads) <= max(sizes.values())
