"""The choice of the server for the next request, without HTTP."""

import asyncio
import random
import time

import pytest

from agentloop.errors import SandboxError
from agentloop.sandboxes import SandboxBusyError
from agentloop.sandboxes.client.balancing import Fleet


class Member:
    def __init__(self, name: str, slots: int = 2):
        self.name = name
        self.capacity = slots
        self.in_flight = self.most = self.served = 0
        self.problem = ""
        self.works = True
        self.probes: list[float] = []

    @property
    def load(self) -> float:
        return self.in_flight / self.capacity

    async def probe(self) -> bool:
        self.probes.append(time.monotonic())
        await asyncio.sleep(0)
        return self.works


def fleet(*slots: int, patience: float = 60.0) -> Fleet[Member]:
    members = [Member(str(index), number) for index, number in enumerate(slots)]
    return Fleet(members, patience, first_pause=0.01, last_pause=0.04)


async def until(condition) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("It never happened.")


async def test_relatively_least_loaded_member_is_first():
    three = fleet(1, 2, 4)
    leases = [three.lease() for _ in range(7)]
    for lease in leases:
        await lease.__aenter__()
    assert [member.in_flight for member in three.members] == [1, 2, 4]
    for lease in leases:
        await lease.__aexit__(None, None, None)
    assert [member.in_flight for member in three.members] == [0, 0, 0]


async def test_equal_members_share_the_load():
    two = fleet(8, 8)
    names = []
    for _ in range(100):
        async with two.lease() as member:
            names.append(member.name)
    assert 20 < names.count("0") < 80


async def test_requests_are_served_in_arrival_order():
    one = fleet(1)
    order = []

    async def use(number):
        async with one.lease():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(use(number) for number in range(20)))
    assert order == list(range(20))


async def test_cancelled_request_does_not_block_the_queue():
    one = fleet(1)
    async with one.lease() as member:
        waiting = [asyncio.create_task(one.lease().__aenter__()) for _ in range(3)]
        await asyncio.sleep(0)
        assert one.waiting == 3
        waiting[0].cancel()
        await asyncio.sleep(0)
    waiting[1].cancel()  # it has just got the room, and passes it on
    assert await waiting[2] is member
    assert (member.in_flight, one.waiting) == (1, 0)


async def test_waiting_past_the_deadline_fails():
    one = fleet(1)
    async with one.lease():
        with pytest.raises(SandboxBusyError):
            async with one.lease(time.monotonic() + 0.05):
                pass
        assert one.waiting == 0
    async with one.lease(time.monotonic() - 1):  # if there is room, nobody waits
        pass


async def test_failed_member_is_probed_with_backoff_and_reused():
    two = fleet(1, 1)
    sick, well = two.members
    sick.works = False
    two.report_down(sick, "refused")
    two.report_down(sick, "refused again")
    async with two.lease() as member:
        assert member is well
        waiting = asyncio.create_task(two.lease().__aenter__())
        await until(lambda: len(sick.probes) >= 6)
        assert not waiting.done()
        sick.works = True
        assert await waiting is sick
    assert two.is_up(sick)
    pauses = [after - before for before, after in zip(sick.probes, sick.probes[1:], strict=False)]
    assert min(pauses[2:5]) > 0.03
    await two.close()


async def test_waiting_fails_if_all_members_stay_down():
    one = fleet(1, patience=0.1)
    one.members[0].works = False
    one.report_down(one.members[0], "refused")
    with pytest.raises(SandboxError, match=r"No sandbox daemon has answered for 0.1 s\. 0: refused"):
        await one.lease().__aenter__()
    with pytest.raises(SandboxError, match="refused"):
        await one.lease().__aenter__()
    one.members[0].works = True
    await until(lambda: one.is_up(one.members[0]))
    async with one.lease():
        pass
    await one.close()


async def test_close_ends_waiting_requests():
    one = fleet(1)
    async with one.lease():
        waiting = asyncio.create_task(one.lease().__aenter__())
        await asyncio.sleep(0)
        await one.close()
        with pytest.raises(SandboxError, match="closed"):
            await waiting


@pytest.mark.parametrize("seed", range(5))
async def test_no_request_is_lost_and_no_member_is_overloaded(seed):
    chance = random.Random(seed)
    some = fleet(*(chance.randint(1, 4) for _ in range(chance.randint(1, 4))))
    done = cancelled = busy = 0

    async def use():
        nonlocal done, cancelled, busy
        deadline = time.monotonic() + chance.choice([0.01, 60, 60, 60])
        try:
            async with some.lease(deadline) as member:
                assert 0 < member.in_flight <= member.capacity
                await asyncio.sleep(chance.random() * 0.005)
                if chance.random() < 0.1:
                    some.report_down(member, "broke")
            done += 1
        except asyncio.CancelledError:
            cancelled += 1
        except SandboxBusyError:
            busy += 1

    tasks = []
    for _ in range(300):
        tasks.append(asyncio.create_task(use()))
        if chance.random() < 0.2:
            chance.choice(tasks).cancel()
        if chance.random() < 0.3:
            await asyncio.sleep(0.001)
    started = await asyncio.gather(*tasks, return_exceptions=True)
    before_it_began = sum(isinstance(outcome, asyncio.CancelledError) for outcome in started)
    assert done + cancelled + busy + before_it_began == 300
    assert done > 100
    assert all(member.in_flight == 0 for member in some.members)
    assert some.waiting == 0
    await some.close()
