"""What the tests of a task make of the agent's work: rewards, steps, separate boxes, and what cannot be judged."""

import itertools

import pytest

from agentloop.boxes import BoxError, BoxLostError
from agentloop.envs.harbor.attempt import Attempt, reward_of
from agentloop.envs.harbor.tasks.task import HarborTask
from agentloop.envs.harbor.verification.rewards import VerifierError
from agentloop.errors import EnvError, UserError
from tests.support.harbor_tasks import make_task

pytestmark = pytest.mark.slow


@pytest.fixture
async def attempt(tmp_path, tree, provider):
    """Return a function that starts an attempt at a task of these parts."""
    begun, numbers = [], itertools.count()

    async def started(*, carried=(), **parts):
        parts = {"folder": tmp_path / f"task{next(numbers)}", **parts}
        task = HarborTask.load(make_task(**parts))
        begun.append(Attempt(task, provider, images={"*": str(tree)}, carried=carried))
        await begun[-1].start()
        return begun[-1]

    yield started
    for each in begun:
        await each.stop()


def writes(name, content):
    return f"#!/bin/sh\ncat > /logs/verifier/{name} <<'X'\n{content}\nX\n"


async def test_work_is_judged(attempt):
    solved, unsolved = await attempt(), await attempt()
    await solved.box.exec("echo world > hello")
    assert await solved.judge() == {"reward": 1.0}
    assert await unsolved.judge() == {"reward": 0.0}
    assert not await solved.advance()
    assert solved.rewards == {"reward": 1.0}


async def test_the_box_is_as_the_task_says(attempt):
    environment = {"env": {"COLOR": "${NO_SUCH_VARIABLE:-blue}"}, "workdir": "/srv"}
    found = await attempt(environment=environment, agent={"user": "worker"})
    result = await found.box.exec("echo $COLOR $PWD; ls -d /logs/*; touch /logs/artifacts/x", user=found.agent_user)
    assert result.stdout == "blue /srv\n/logs/agent\n/logs/artifacts\n/logs/verifier\n"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("reward.json", '{"reward": 0.5, "lint": 1}', {"reward": 0.5, "lint": 1.0}),
        ("reward.txt", "0.75", {"reward": 0.75}),
    ],
)
async def test_rewards_are_read(attempt, name, content, expected):
    assert await (await attempt(test=writes(name, content))).judge() == expected


async def test_reward_json_wins(attempt):
    test = writes("reward.txt", "0") + "echo '{\"reward\": 1}' > /logs/verifier/reward.json\n"
    assert await (await attempt(test=test)).judge() == {"reward": 1.0}


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("#!/bin/sh\ntrue\n", "wrote neither /logs/verifier/reward.json nor /logs/verifier/reward.txt"),
        (writes("reward.txt", "nan"), "no finite number"),
        (writes("reward.txt", ""), "no finite number"),
        (writes("reward.txt", "good"), "no finite number"),
        (writes("reward.json", '{"reward": 1e999}'), "no finite number"),
        (writes("reward.json", '{"reward": "1"}'), "no finite number"),
        (writes("reward.json", "[1"), "no finite number"),
        (writes("reward.json", "1"), "not an object"),
        ("#!/bin/sh\nln -s /etc/passwd /logs/verifier/reward.txt\n", "wrote neither"),
        ("#!/bin/sh\nmkdir /logs/verifier/reward.txt\n", "wrote neither"),
    ],
)
async def test_what_is_no_reward_cannot_be_judged(attempt, test, reason):
    with pytest.raises(VerifierError, match=reason):
        await (await attempt(test=test)).judge()


async def test_the_exit_status_of_tests_is_no_reward(attempt):
    assert await (await attempt(test=writes("reward.txt", "1") + "exit 3\n")).judge() == {"reward": 1.0}


async def test_tests_that_take_too_long_cannot_be_judged(attempt):
    found = await attempt(test=writes("reward.txt", "1") + "sleep 60\n", verifier={"timeout_sec": 0.5})
    with pytest.raises(VerifierError, match=r"took longer than 0\.5 s"):
        await found.judge()


async def test_tests_run_as_their_user_with_their_variables(attempt):
    test = "#!/bin/sh\n[ $(id -un)$SECRET = workerx ] && echo 1 > /logs/verifier/reward.txt\n"
    found = await attempt(test=test, verifier={"user": "worker", "env": {"SECRET": "x"}})
    assert (await found.box.exec("echo $SECRET; ls /tests")).stdout.strip() == ""
    assert await found.judge() == {"reward": 1.0}


STEPS = {
    "one": {"instruction": "Write world to /app/hello."},
    "two": {
        "instruction": "Write moon to /app/hello.",
        "test": '#!/bin/sh\n[ "$(cat /app/hello)" = moon ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n',
        "solve": "#!/bin/sh\necho moon > /app/hello\n",
    },
}


async def test_steps_follow_each_other_in_one_box(attempt):
    found = await attempt(steps=STEPS)
    assert found.step.instruction == "Write world to /app/hello."
    await found.box.exec("echo world > hello; echo x > /logs/agent/log")
    assert await found.judge() == {"reward": 1.0}
    assert await found.advance()
    assert found.step.instruction == "Write moon to /app/hello."
    assert (await found.box.exec("cat hello; ls /tests /logs/*")).stdout == (
        "world\n/logs/agent:\n\n/logs/artifacts:\n\n/logs/verifier:\n"
    )
    assert await found.judge() == {"reward": 0.0}
    assert not await found.advance()
    assert found.rewards == {"reward": 0.5}


async def test_the_last_step_may_be_all_that_counts(attempt):
    found = await attempt(steps=STEPS, multi_step_reward_strategy="final")
    await found.judge()
    await found.advance()
    await found.box.exec("echo moon > hello")
    await found.judge()
    assert found.rewards == {"reward": 1.0}


@pytest.mark.parametrize("least", [1.0, {"reward": 0.5}, {"other": 0.1}])
async def test_a_step_below_its_least_reward_is_the_last(attempt, least):
    steps = {"one": {**STEPS["one"], "min_reward": least}, "two": STEPS["two"]}
    found = await attempt(steps=steps)
    await found.judge()
    assert not await found.advance()
    assert found.rewards == {"reward": 0.0}


async def test_a_step_brings_files_and_a_setup(tmp_path, attempt):
    folder = tmp_path / "task"
    for step, script in (("one", "echo $(id -un) > made"), ("two", "exit 4")):
        (folder / "steps" / step / "workdir").mkdir(parents=True)
        (folder / "steps" / step / "workdir/setup.sh").write_text(script)
    found = await attempt(folder=folder, steps=STEPS, agent={"user": "0"})
    assert (await found.box.exec("cat made")).stdout == "root\n"
    await found.judge()
    with pytest.raises(EnvError, match=r"setup\.sh of the step two of task failed"):
        await found.advance()


async def test_a_separate_verifier_gets_the_artifacts_only(attempt):
    test = "#!/bin/sh\ncat /app/hello > /logs/verifier/seen; ls /app >> /logs/verifier/seen\n" + writes(
        "reward.txt", "1"
    )
    found = await attempt(test=test, verifier={"environment_mode": "separate"}, artifacts=["/app/hello", "/app/none"])
    await found.box.exec("echo world > hello; echo forged > /app/other; echo '#!/bin/sh' > /bin/cat")
    logs = found.task.folder.parent / "logs"
    assert await found.judge(logs) == {"reward": 1.0}
    assert (logs / "seen").read_text() == "world\nhello\n"


async def test_tests_can_run_in_a_new_box_with_what_is_carried(attempt):
    found = await attempt(carried=("/app",))
    await found.box.exec("mkdir -p /app; echo world > /app/hello; cp /bin/busybox /bin/x; echo broken > /bin/cat")
    assert await found.judge() == {"reward": 1.0}


async def test_a_health_check_holds_the_start(attempt):
    check = {"command": "test -e /srv/ready", "interval_sec": 0.1, "retries": 2}
    with pytest.raises(BoxError, match="the health check 'test -e /srv/ready' failed 2 times"):
        await attempt(environment={"healthcheck": check})


async def test_a_lost_box_is_reported(attempt):
    found = await attempt()
    await found.box.stop()
    with pytest.raises(BoxLostError):
        await found.judge()


async def test_what_no_box_can_do_is_refused(attempt):
    with pytest.raises(UserError, match="MCP servers"):
        await attempt(environment={"mcp_servers": [{"name": "a", "url": "http://a"}]})
    with pytest.raises(UserError, match="compose services"):
        await attempt(artifacts=[{"source": "/x", "service": "db"}])
    with pytest.raises(EnvError, match="GPUs"):
        await attempt(environment={"gpus": 1})


NO_NETWORK = {"network_mode": "no-network"}
EXAMPLE = {"network_mode": "allowlist", "allowed_hosts": ["a.example.org", "b.example.org"]}
EXAMPLE_SORTED_DIFFERENTLY = {"network_mode": "allowlist", "allowed_hosts": ["b.example.org", "a.example.org"]}


@pytest.mark.parametrize(
    ("phase", "tables"),
    [
        ("agent", {"agent": {"network_mode": "public"}}),
        ("agent", {"environment": EXAMPLE, "agent": {"network_mode": "allowlist", "allowed_hosts": ["a.example.org"]}}),
        ("agent", {"agent": NO_NETWORK, "steps": {"first": {}, "second": {"agent": EXAMPLE}}}),
        ("verifier", {"verifier": EXAMPLE}),
        ("verifier", {"verifier": EXAMPLE | {"environment": NO_NETWORK}}),
    ],
)
def test_a_network_that_would_have_to_change_is_refused(tmp_path, phase, tables):
    task = HarborTask.load(make_task(tmp_path / "task", **tables))
    with pytest.raises(UserError, match=f"gives the {phase} another network than its box"):
        Attempt(task, None)
    Attempt(task, None, network="none")


@pytest.mark.parametrize(
    "tables",
    [
        {"agent": NO_NETWORK, "verifier": NO_NETWORK},
        {"environment": EXAMPLE, "agent": EXAMPLE_SORTED_DIFFERENTLY},
        {"agent": EXAMPLE, "steps": {"only": {"agent": NO_NETWORK}}},
        {"verifier": EXAMPLE | {"environment": EXAMPLE}},
    ],
)
def test_a_phase_may_name_the_network_of_its_box(tmp_path, tables):
    Attempt(HarborTask.load(make_task(tmp_path / "task", **tables)), None)


def test_one_number_is_the_reward():
    assert reward_of({"reward": 0.5, "other": 1.0}) == 0.5
    assert reward_of({"score": 0.5}) == 0.5
    with pytest.raises(VerifierError, match="none of them is `reward`"):
        reward_of({"a": 1.0, "b": 2.0})
