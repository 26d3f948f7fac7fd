"""Agents that try to forge a reward: what they did not earn stays 0, or fails the episode.

An agent that is root can replace the programs that tests in its own box use. `carried` and separate verifiers are the
answer to that; the second half of these tests needs them.
"""

import itertools
import subprocess
import time

import pytest

from agentloop.boxes import BoxError
from agentloop.envs.harbor.attempt import Attempt
from agentloop.envs.harbor.tasks.task import HarborTask
from agentloop.envs.harbor.verification.rewards import VerifierError
from tests.support.harbor_tasks import make_task

pytestmark = pytest.mark.slow

SILENT = "#!/bin/sh\ntrue\n"
"""Tests that write no reward."""
EVIL = (
    "echo world > /srv/world; mkdir -p /srv/evil; "
    "printf '#!/bin/sh\\necho world\\n' > /srv/evil/cat; chmod +x /srv/evil/cat; "
)
"""Makes a `cat` that always says what the tests expect."""


@pytest.fixture
async def judged(tmp_path, tree, provider):
    """Return a function that starts a task, runs the commands of an attack, and judges it."""
    begun, numbers = [], itertools.count()

    async def run(attack, *, carried=(), user=None, seconds=20, image=tree, **parts):
        task = HarborTask.load(make_task(tmp_path / f"task{next(numbers)}", **parts))
        attempt = Attempt(task, provider, images={"*": str(image)}, carried=carried)
        begun.append(attempt)
        await attempt.start()
        await attempt.box.exec(attack, user=user, timeout=seconds)
        return (await attempt.judge())["reward"]

    yield run
    for each in begun:
        await each.stop()


@pytest.mark.parametrize("name", ["reward.txt", "reward.json"])
async def test_a_daemon_that_writes_the_reward_later(judged, name):
    loop = f"while :; do echo 1 > /logs/verifier/{name}; done"
    assert await judged(f"setsid sh -c '{loop}' > /dev/null 2>&1 &") == 0.0
    assert await judged(f"setsid setsid sh -c \"trap '' TERM HUP INT; {loop}\" > /dev/null 2>&1 & exit 0") == 0.0


@pytest.mark.parametrize(
    "attack",
    [
        "echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json",
        "mkdir /srv/mine; echo 1 > /srv/mine/reward.txt; rm -r /logs/verifier; ln -s /srv/mine /logs/verifier",
        "mkdir -p /srv/mine/verifier; echo 1 > /srv/mine/verifier/reward.txt; rm -r /logs; ln -s /srv/mine /logs",
        "echo 1 > /srv/one; ln -s /srv/one /logs/verifier/reward.json; ln /srv/one /logs/verifier/reward.txt",
    ],
)
async def test_a_reward_file_written_early(judged, attack):
    with pytest.raises(VerifierError, match="wrote neither"):
        await judged(attack, test=SILENT)
    assert await judged(attack) == 0.0


async def test_a_shell_that_removes_nothing(judged):
    """The shell of the box is replaced, so that the early reward stays: that is noticed from outside."""
    attack = (
        "echo 1 > /logs/verifier/reward.txt; "
        "printf '#!/bin/busybox true\\n' > /bin/fake; chmod +x /bin/fake; mv /bin/fake /bin/sh"
    )
    with pytest.raises(BoxError, match="keeps a reward that was written before the tests ran"):
        await judged(attack, test=SILENT)


async def test_tests_cannot_be_awaited(judged):
    steal = (
        "while [ ! -e /tests/test.sh ]; do :; done; echo 'echo 1 > /logs/verifier/reward.txt; exit 0' > /tests/test.sh"
    )
    assert await judged(f'setsid sh -c "{steal}" > /dev/null 2>&1 &') == 0.0
    assert await judged("mkdir -p /srv/tests; ln -s /srv/tests /tests; echo world > /tests/answer") == 0.0


async def test_tests_of_a_step_are_gone_in_the_next(tmp_path, tree, provider):
    task = HarborTask.load(make_task(tmp_path / "t", steps={"one": {}, "two": {}}))
    attempt = Attempt(task, provider, images={"*": str(tree)})
    await attempt.start()
    try:
        await attempt.judge()
        await attempt.advance()
        found = (
            await attempt.box.exec("find / -xdev -name 'test*.sh' -o -xdev -name 'reward.*' -o -name test-stdout.txt")
        ).stdout
        assert found == ""
    finally:
        await attempt.stop()


async def test_settings_of_shells(judged):
    files = (
        "/etc/profile /root/.profile /root/.bashrc /root/.bash_profile /etc/bash.bashrc /root/.shrc /etc/environment"
    )
    append = f"for file in {files}; do echo 'export PATH=/srv/evil:$PATH' >> $file; done; "
    attack = EVIL + append + "export PATH=/srv/evil:$PATH ENV=/root/.profile BASH_ENV=/root/.profile"
    assert await judged(attack) == 0.0


async def test_another_user_cannot_touch_what_tests_use(judged):
    attack = (
        EVIL
        + "cp /srv/evil/cat /bin/cat; rm /bin/cat; ln -s /srv/world /app/hello; mount -t tmpfs none /bin; kill -9 1"
    )
    assert await judged(attack, user="worker") == 0.0


async def test_a_fork_bomb(judged):
    assert await judged("f() { f | f & }; f; sleep 1", seconds=3) == 0.0


async def test_a_full_disk_earns_nothing(judged):
    with pytest.raises((VerifierError, BoxError)):
        await judged("head -c 500000000 /dev/zero > /app/large; head -c 500000000 /dev/zero > /dev/shm/large")
    assert await judged("head -c 500000000 /dev/zero > /srv/large", carried=("/app",)) == 0.0


async def test_the_clock_is_not_the_agents(judged):
    before = time.time()
    assert await judged("date -s '2001-01-01'; [ $(date +%Y) = 2001 ] && echo world > hello") == 0.0
    assert abs(time.time() - before) < 60


@pytest.mark.parametrize(
    "attack",
    [
        EVIL + "cp /srv/evil/cat /bin/cat.new; mv /bin/cat.new /bin/cat",
        EVIL + "echo 'echo 1 > /logs/verifier/reward.txt' > /srv/forge; "
        "printf '#!/bin/busybox sh\\n/bin/busybox sh /srv/forge\\n' > /bin/fake; "
        "chmod +x /bin/fake; mv /bin/fake /bin/sh",
        "mkdir -p /app; ln -s /tests/answer /app/hello",
        "mkdir -p /app; ln -s /proc/self/fd/0 /app/hello",
        "echo 1 > /logs/verifier/reward.txt",
    ],
)
async def test_a_root_that_replaces_programs_is_alone_in_its_box(judged, attack):
    """With `carried` the tests run in a new box, which gets no links either."""
    test = (
        "#!/bin/sh\necho world > /tests/answer\n"
        '[ "$(cat /app/hello)" = world ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n'
    )
    assert await judged(attack, carried=("/app",), test=test) == 0.0
    assert await judged("echo world > /app/hello", carried=("/app",), test=test) == 1.0
    separate = {"environment_mode": "separate"}
    assert await judged(attack, test=test, verifier=separate, artifacts=["/app"]) == 0.0


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return a root file system that has Python, as an archive."""
    archive = tmp_path_factory.mktemp("python") / "python.tar"
    container = subprocess.check_output(["docker", "create", "agentloop-sandbox", "true"], text=True).strip()
    with archive.open("wb") as file:
        subprocess.run(["docker", "export", container], stdout=file, check=True)
    subprocess.run(["docker", "rm", container], check=True, capture_output=True)
    return archive


JUDGED_BY_PYTHON = """#!/bin/sh
python3 -c "
from pathlib import Path
hello = Path('/app/hello')
earned = hello.is_file() and hello.read_text() == 'world\\n'
Path('/logs/verifier/reward.txt').write_text(str(int(earned)))
"
"""
FORGE = "import atexit; atexit.register(lambda: open('/logs/verifier/reward.txt', 'w').write('1'))"


@pytest.mark.docker
async def test_modules_that_python_imports_at_its_start(judged, python):
    place = 'd=$(python3 -c "import {module}; print({expression})"); mkdir -p $d; echo "' + FORGE + '" > $d/{file}.py; '
    site = place.format(module="sysconfig", expression="sysconfig.get_path('stdlib')", file="sitecustomize")
    own = place.format(module="site", expression="site.getusersitepackages()", file="usercustomize")
    variables = 'mkdir /tmp/m; echo "' + FORGE + '" > /tmp/m/sitecustomize.py; export PYTHONPATH=/tmp/m; '
    files = (
        "for file in /etc/environment /root/.profile /root/.bashrc; do echo 'export PYTHONPATH=/tmp/m' >> $file; done"
    )
    parts = {"image": python, "test": JUDGED_BY_PYTHON}
    assert await judged(own, user="nobody", **parts) == 0.0
    assert await judged(variables + files, **parts) == 0.0
    assert await judged(site + own, carried=("/app",), **parts) == 0.0
    assert await judged("echo world > /app/hello", carried=("/app",), **parts) == 1.0


@pytest.mark.docker
async def test_libraries_that_all_programs_load(judged, python):
    """The library need not be one: a name in this file already disturbs every program of its own box."""
    library = "/usr/lib/forge.so"
    attack = f"cp /bin/true {library}; echo {library} > /etc/ld.so.preload; export LD_PRELOAD={library}"
    parts = {"image": python, "test": JUDGED_BY_PYTHON}
    assert await judged(attack, **parts) == 0.0
    assert await judged(attack, carried=("/app",), **parts) == 0.0
