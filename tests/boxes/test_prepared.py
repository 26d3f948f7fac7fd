"""Boxes that are prepared once for several episodes, for every provider."""

import asyncio

import pytest

from agentloop.boxes import BoxError
from agentloop.boxes.prepared import PreparedBox

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


class Preparation:
    """Starts boxes whose file /id says which preparation made it, and counts them."""

    def __init__(self, provider, spec, script="true", failures=0):
        self.provider = provider
        self.spec = spec
        self.script = script
        self.failures = failures
        self.started = []

    async def __call__(self):
        box = await self.provider.start(self.spec)
        self.started.append(box)
        await box.exec(f"echo {len(self.started)} > /id; {self.script}")
        if len(self.started) <= self.failures:
            await box.stop()
            raise BoxError("the preparation failed")
        return box


async def taken(prepared, count):
    found = await asyncio.gather(*(prepared.take() for _ in range(count)), return_exceptions=True)
    return found, [None if isinstance(each, Exception) else (await each.exec("cat /id")).stdout for each in found]


async def stop(boxes):
    for box in boxes:
        await box.stop()


async def test_the_last_one_gets_the_box_and_the_others_copies(provider, spec):
    prepare = Preparation(provider, spec)
    prepared = PreparedBox(prepare, takers=3)
    found, ids = await taken(prepared, 3)
    assert ids == ["1\n"] * 3
    assert len({box.id for box in found}) == 3
    assert prepare.started[0] in found
    await prepared.close()
    assert (await prepare.started[0].exec("true")).return_code == 0
    await stop(found)


async def test_an_unclaimed_box_is_stopped_at_the_end(provider, spec):
    prepare = Preparation(provider, spec)
    prepared = PreparedBox(prepare, takers=3)
    found, _ = await taken(prepared, 1)
    await prepared.close()
    with pytest.raises(BoxError, match="has ended"):
        await prepare.started[0].exec("true")
    assert (await found[0].exec("cat /id")).stdout == "1\n"
    await stop(found)


async def test_a_box_with_running_programs_is_not_copied(provider, spec):
    prepare = Preparation(provider, spec, script="sleep 4781 &")
    found, ids = await taken(PreparedBox(prepare, takers=3), 3)
    assert sorted(ids) == ["1\n", "2\n", "3\n"]
    for box in found:
        assert "sleep 4781" in (await box.exec("ps")).stdout
    await stop(found)


async def test_a_failure_is_that_of_one_and_the_next_prepares_again(provider, spec):
    prepare = Preparation(provider, spec, failures=1)
    prepared = PreparedBox(prepare, takers=3)
    found, ids = await taken(prepared, 3)
    assert ids == [None, "2\n", "2\n"]
    assert str(found[0]) == "the preparation failed"
    await prepared.close()
    await stop(found[1:])


async def test_nothing_is_left_of_a_preparation_that_is_cancelled(provider, spec):
    prepare = Preparation(provider, spec)
    prepared = PreparedBox(prepare, takers=2)
    taking = asyncio.ensure_future(prepared.take())
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    await prepared.close()
    await prepared.close()
    assert taking.cancelled()


async def test_the_box_is_stopped_if_its_last_taker_is_cancelled_while_others_copy(provider, spec):
    prepare = Preparation(provider, spec)
    prepared = PreparedBox(prepare, takers=2)
    taking = [asyncio.ensure_future(prepared.take()) for _ in range(2)]
    while not prepared._is_taken:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    for each in taking:
        each.cancel()
    await asyncio.wait(taking)
    await prepared.close()
    assert all(each.cancelled() for each in taking)
    with pytest.raises(BoxError, match="has ended"):
        await prepare.started[0].exec("true")
