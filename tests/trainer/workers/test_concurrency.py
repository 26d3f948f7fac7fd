from hypothesis import given
from hypothesis import strategies as st

from agentloop.trainer.workers.concurrency import CLEAR, FULL, ConcurrencyLimit


def test_an_engine_that_does_not_say_how_large_its_cache_is_gets_the_most():
    limit = ConcurrencyLimit(32, cache_tokens=None, longest=1000)
    limit.observe(in_flight=32, ended=3, resident_tokens=10**9)
    assert limit.limit == 32
    assert limit.room(30) == 2
    assert limit.room(40) == 0


def test_the_limit_starts_with_the_number_of_longest_trajectories_that_fit():
    assert ConcurrencyLimit(256, cache_tokens=10_000, longest=1000).limit == 10
    assert ConcurrencyLimit(256, cache_tokens=500, longest=1000).limit == 1
    assert ConcurrencyLimit(4, cache_tokens=10_000, longest=1000).limit == 4


def test_short_episodes_let_it_grow_by_a_quarter_a_turnover():
    limit = ConcurrencyLimit(256, cache_tokens=10_000, longest=1000)
    limit.observe(in_flight=10, ended=10, resident_tokens=1000)
    assert limit.limit == 12


def test_it_does_not_grow_while_it_does_not_bind():
    limit = ConcurrencyLimit(256, cache_tokens=10_000, longest=1000)
    limit.observe(in_flight=2, ended=3, resident_tokens=1000)
    assert limit.limit == 10


def test_a_full_cache_shrinks_it_once_until_the_episodes_above_are_gone():
    limit = ConcurrencyLimit(256, cache_tokens=10_000, longest=1000)
    limit.observe(in_flight=10, ended=0, resident_tokens=9_500)
    assert limit.limit == 8
    limit.observe(in_flight=10, ended=0, resident_tokens=9_500)
    assert limit.limit == 8
    limit.observe(in_flight=8, ended=2, resident_tokens=9_200)
    assert limit.limit == 6


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 50), st.integers(0, 20_000)), max_size=50))
def test_it_stays_between_one_and_the_most_and_moves_with_the_cache(observed):
    limit = ConcurrencyLimit(64, cache_tokens=10_000, longest=1000)
    for in_flight, ended, tokens in observed:
        before = limit.limit
        limit.observe(in_flight=in_flight, ended=ended, resident_tokens=tokens)
        assert 1 <= limit.limit <= 64
        if tokens > FULL * 10_000:
            assert limit.limit <= before
        elif tokens < CLEAR * 10_000:
            assert limit.limit >= before
        else:
            assert limit.limit == before


def test_it_settles_where_the_cache_is_used_and_not_full():
    """Episodes of 100 tokens in a cache of 10,000: between 75 and 90 of them."""
    limit = ConcurrencyLimit(256, cache_tokens=10_000, longest=1000)
    for _ in range(200):
        in_flight = limit.limit
        limit.observe(in_flight=in_flight, ended=max(in_flight // 4, 1), resident_tokens=in_flight * 100)
    assert 70 <= limit.limit <= 91
