import asyncio

import pytest

from agentloop.process.group_scope import GroupScope, current_group


class Machine:
    def __init__(self):
        self.is_closed = False

    async def close(self):
        self.is_closed = True


async def episode(made):
    scope = current_group()
    assert scope.episodes == 3
    made.append(scope.share("machine", Machine))


def test_episodes_of_a_group_share_what_the_first_has_made():
    made = []

    async def play():
        async with GroupScope(3), asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(episode(made))
        assert current_group() is None

    asyncio.run(play())
    asyncio.run(play())
    assert [each is made[0] for each in made] == [True, True, True, False, False, False]
    assert all(each.is_closed for each in made)


def test_it_is_closed_when_the_group_fails():
    made = []

    async def play():
        async with GroupScope(3):
            await episode(made)
            raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        asyncio.run(play())
    assert made[0].is_closed


def test_a_failure_to_close_is_logged_and_the_others_are_closed(caplog):
    class Broken(Machine):
        async def close(self):
            raise OSError("the machine is gone")

    async def play():
        async with GroupScope(3) as scope:
            return [scope.share("first", Machine), scope.share("second", Broken)]

    assert asyncio.run(play())[0].is_closed
    assert "the machine is gone" in caplog.text
