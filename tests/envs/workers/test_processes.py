import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from agentloop.envs.workers.pool import WorkerPool, close_pools, pool_of, rows_of
from agentloop.envs.workers.process import Program
from agentloop.errors import EnvError, UserError

pytestmark = pytest.mark.slow
TOY = Path(__file__).with_name("toy.py")


def toy(**options):
    return Program("toy", sys.executable, TOY, options)


@pytest.fixture
async def pool():
    made = WorkerPool(toy())
    yield made
    made.close()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition):
    while not condition():  # noqa: ASYNC110 - another process changes it
        await asyncio.sleep(0.01)


async def test_episodes_share_a_process_and_keep_their_own_state(pool):
    first, second = [await pool.start({"from": each}, seconds=30) for each in (10, 20)]
    assert await asyncio.gather(first.step({}), second.step({"add": 5})) == [11, 25]
    assert first.first["pid"] == second.first["pid"] != os.getpid()
    await first.close()
    third = await pool.start({}, seconds=30)
    assert third.first["open"] == 2  # the first was released
    assert await second.step({}) == 26


async def test_options_reach_the_class():
    pool = WorkerPool(toy(greeting="good morning"))
    async with pool.episode({}, seconds=30) as game:
        assert game.first["greeting"] == "good morning"
    pool.close()


@pytest.mark.parametrize(("what", "result"), [("print", 1), ("fork", 1), ("read", "")])
async def test_what_a_package_prints_forks_or_reads_breaks_nothing(pool, what, result):
    async with pool.episode({}, seconds=30) as game:
        assert await game.step({"do": what}) == result
        assert isinstance(await game.step({}), int)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("raise", r"toy raised KeyError: 'piece' \(toy.py, line \d+\)"),
        ("exit", "toy raised SystemExit: 3"),
        ("unserializable", "not JSON serializable"),
    ],
)
async def test_an_error_fails_its_own_episode_only(pool, what, says):
    async with pool.episode({}, seconds=30) as other, pool.episode({}, seconds=30) as game:
        with pytest.raises(EnvError, match=says):
            await game.step({"do": what})
        assert await other.step({}) == 1


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("end", "it exited with code 4"),
        ("crash", "it was killed by SIGSEGV.*the last words"),
    ],
)
async def test_a_process_that_dies_fails_its_episodes_and_a_new_one_starts(pool, what, says):
    games = [await pool.start({}, seconds=30) for _ in range(2)]
    waiting = asyncio.create_task(games[0].step({"do": "sleep", "seconds": 100}))
    await asyncio.sleep(0)
    for call in (games[1].step({"do": what}), waiting, games[0].step({})):
        with pytest.raises(EnvError, match=f"(?s){says}"):
            await call
    for game in games:
        await game.close()
    async with pool.episode({}, seconds=30) as after:
        assert after.first["pid"] != games[0].first["pid"]
        assert await after.step({}) == 1


async def test_a_step_without_a_bound_may_take_longer_than_others(pool):
    async with pool.episode({}, seconds=0.3) as game:
        assert await game.step({"do": "sleep", "seconds": 0.5}, bounded=False) == 1


async def test_a_call_that_hangs_ends_its_process(pool):
    game = await pool.start({}, seconds=0.3)
    with pytest.raises(EnvError, match=r"a step took longer than 0\.3 s"):
        await game.step({"do": "hang"})
    await until(lambda: not is_alive(game.first["pid"]))


@pytest.mark.parametrize("leaves", [False, True])
async def test_what_a_package_started_ends_with_its_process(pool, leaves):
    game = await pool.start({}, seconds=30)
    child = await game.step({"do": "daemon", "leaves": leaves})
    assert is_alive(child)
    os.kill(game.first["pid"], signal.SIGKILL)
    await until(lambda: not is_alive(child))
    with pytest.raises(EnvError, match="killed by SIGKILL"):
        await game.step({})


async def test_several_processes_share_the_episodes_evenly():
    pool = WorkerPool(toy(), processes=2)
    games = await asyncio.gather(*(pool.start({}, seconds=30) for _ in range(6)))
    pids = [game.first["pid"] for game in games]
    assert sorted(map(pids.count, set(pids))) == [3, 3]
    pool.close()
    assert not any(map(is_alive, pids))


async def test_an_exclusive_process_serves_one_episode_at_a_time():
    pool = WorkerPool(toy(), processes=2, exclusive=True)
    games = [await pool.start({}, seconds=30) for _ in range(2)]
    assert games[0].first["pid"] != games[1].first["pid"]
    third = asyncio.create_task(pool.start({}, seconds=30))
    await asyncio.sleep(0.05)
    assert not third.done()
    await games[0].close()
    assert (await third).first["pid"] == games[0].first["pid"]
    pool.close()


async def test_a_pool_is_shared_by_all_that_ask_alike_until_it_is_closed():
    pool = pool_of(toy())
    assert pool_of(toy()) is pool
    assert pool_of(toy(greeting="other")) is not pool
    game = await pool.start({}, seconds=30)
    close_pools()
    assert not is_alive(game.first["pid"])
    assert pool_of(toy()) is not pool
    close_pools()


async def test_a_worker_that_cannot_start_says_why():
    for program, says in (
        (toy(fails=True), "it cannot start: toy raised RuntimeError: no such game"),
        (Program("toy", "/nowhere/python", TOY), "the interpreter /nowhere/python of toy cannot start"),
    ):
        pool = WorkerPool(program)
        for _ in range(2):
            with pytest.raises(EnvError, match=says):
                await pool.start({}, seconds=30)
        pool.close()


def test_rows_come_from_a_process_of_their_own():
    rows = list(rows_of(toy(), {"count": 1000}))
    assert [row["number"] for row in rows] == list(range(1000))
    with pytest.raises(UserError, match=r"rows of toy cannot be created.*unexpected keyword argument 'size'"):
        list(rows_of(toy(), {"size": 3}))


async def test_processes_killed_at_random_moments_lose_their_own_episodes_only():
    pool, rng, room = WorkerPool(toy(), processes=3), random.Random(0), asyncio.Semaphore(30)
    outcomes, pids, steps = [], set(), count()
    due = asyncio.Event()

    async def play(length):
        try:
            async with room, pool.episode({}, seconds=30) as game:
                pids.add(game.first["pid"])
                for _ in range(length):
                    total = await game.step({"do": "sleep", "seconds": 0.002})
                    if next(steps) % 500 == 250:
                        due.set()
                outcomes.append(total == length)
        except EnvError as error:
            outcomes.append(str(error))

    async def kill():
        while True:  # after a number of steps, so that a busy machine loses no more episodes than others
            await due.wait()
            due.clear()
            await asyncio.sleep(rng.uniform(0.0, 0.01))
            if alive := [pid for pid in pids if is_alive(pid)]:
                os.kill(rng.choice(alive), signal.SIGKILL)

    killer = asyncio.create_task(kill())
    await asyncio.gather(*(play(rng.randrange(1, 200)) for _ in range(300)))
    killer.cancel()
    pool.close()
    lost = [each for each in outcomes if each is not True]
    assert len(outcomes) == 300
    assert 0 < len(lost) < 300
    assert all("killed by SIGKILL" in each for each in lost)


def test_no_process_outlives_a_run_that_is_killed(tmp_path):
    run = tmp_path / "run.py"
    run.write_text(
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from agentloop.envs.workers.pool import WorkerPool\n"
        "from agentloop.envs.workers.process import Program\n"
        "async def main():\n"
        f"    pool = WorkerPool(Program('toy', sys.executable, Path({str(TOY)!r})))\n"
        "    game = await pool.start({}, seconds=30)\n"
        "    children = [await game.step({'do': 'daemon', 'leaves': leaves}) for leaves in (False, True)]\n"
        "    print(game.first['pid'], *children, flush=True)\n"
        "    await game.step({'do': 'hang'})\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, str(run)], stdout=subprocess.PIPE, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(is_alive, pids))
        process.kill()
    until = time.monotonic() + 20
    while any(map(is_alive, pids)):
        assert time.monotonic() < until
        time.sleep(0.02)
