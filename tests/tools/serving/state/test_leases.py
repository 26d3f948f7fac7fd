"""Leases: limited in number, and closed when idle."""

import pytest
from fastapi import HTTPException

from agentloop.errors import SandboxError
from agentloop.tools.serving.state.leases import Leases


def held(maximum: int = 10) -> tuple[Leases, list]:
    closed: list = []

    async def close(item) -> None:
        closed.append(item)
        if item == "broken":
            raise OSError("no")

    return Leases("thing", "/v1/things", close, maximum, "--max-things", sweep_seconds=0.01), closed


async def give(item):
    return item


async def test_idle_lease_is_closed(until):
    things, closed = held()
    async with things.kept():
        await things.open(lambda: give("a"), 0.05)
        busy = await things.open(lambda: give("b"), 0.05)
        with things.use(busy.id) as item:
            assert item == "b"
            await until(lambda: closed == ["a"])
            assert things.find(busy.id).idle_seconds == 0.0
        await until(lambda: closed == ["a", "b"])
    assert len(things) == 0


async def test_idle_leases_are_closed_after_one_that_fails_to_close(until):
    things, closed = held()
    async with things.kept():
        await things.open(lambda: give("broken"), 0.01)
        await until(lambda: closed == ["broken"])
        await things.open(lambda: give("a"), 0.01)
        await until(lambda: closed == ["broken", "a"])


async def test_close_ends_all_leases_if_one_fails():
    things, closed = held()
    async with things.kept():
        for item in ("a", "broken", "c"):
            await things.open(lambda item=item: give(item), 60)
    assert sorted(closed) == ["a", "broken", "c"]


async def test_maximum_is_enforced():
    things, _ = held(maximum=1)
    first = await things.open(lambda: give("a"), 60)
    with pytest.raises(HTTPException) as raised:
        await things.open(lambda: give("b"), 60)
    assert raised.value.status_code == 429
    assert "--max-things" in raised.value.detail
    await things.end(first.id)
    await things.open(lambda: give("b"), 60)


async def test_failed_lease_does_not_count():
    things, _ = held(maximum=1)

    async def fail():
        raise SandboxError("no")

    for _ in range(3):
        with pytest.raises(SandboxError):
            await things.open(fail, 60)
    await things.open(lambda: give("a"), 60)


@pytest.mark.slow
async def test_lease_limits_apply_over_http(by_hand):
    async with by_hand(max_sessions=1) as (client, _):
        first = await client.post("/v1/sessions", json={})
        second = await client.post("/v1/sessions", json={})
        assert (first.status_code, second.status_code) == (200, 429)
        assert "--max-sessions" in second.json()["detail"]
