import asyncio
import threading

import pytest

from agentloop.envs.rewards import Reward, RewardFunction, inline, load_reward
from agentloop.errors import UserError, WrongTypeError
from agentloop.types.trajectory import Trajectory


def answered(text):
    return Trajectory(messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": text}])


@pytest.mark.parametrize(
    ("name", "text", "answer", "value"),
    [
        ("exact", " 42\n", 42, 1.0),
        ("exact", "It is 42", 42, 0.0),
        ("contains", "It is Paris.", "paris", 1.0),
        ("contains", "It is 142.", "42", 0.0),
        ("last_number", "3 + 4 = 7", "7", 1.0),
        ("last_number", "between 1-7", "7", 1.0),
        ("last_number", "about $1,234.50.", 1234.5, 1.0),
        ("last_number", "-3", "3", 0.0),
        ("last_number", "7 apples, 8 pears", "7", 0.0),
        ("last_number", "none", "7", 0.0),
        ("last_number", "72", "48 + 24 #### 72", 1.0),
    ],
)
async def test_built_in_rewards_are_registered(name, text, answer, value):
    assert await load_reward(name)(answered(text), {"answer": answer}) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<answer> -4 </answer>", 1.0),
        ("<answer>4</answer>", 0.0),
        ("<answer>4</answer> no: <answer>-4</answer>", 1.0),
        ("-4", 0.0),
    ],
)
async def test_exact_with_a_tag_compares_signs_too(text, value):
    assert await load_reward("exact", {"tag": "answer"})(answered(text), {"answer": -4}) == value


async def test_row_without_answer_raises():
    with pytest.raises(LookupError, match="no 'answer' column"):
        await load_reward("exact")(answered("1"), {"id": "1"})


async def test_values_may_not_have_the_names_of_the_run():
    def shares(trajectory, task):
        return {"reward": 1.0, "mean": 0.25}

    with pytest.raises(ValueError, match="returned a value 'mean', but reward/mean in the log is the run's own"):
        await RewardFunction(shares, name="shares")(answered("1"), {})


async def test_options_are_passed_to_the_function():
    reward = load_reward("last_number", {"tolerance": 0.1})
    assert await reward(answered("1.05"), {"answer": 1}) == 1.0


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [("0.0201", "0.02", 1.0), ("0.03", "0.02", 0.0), ("-0.0201", "-0.02", 1.0), ("0.001", "0", 0.0), ("0.0", "0", 1.0)],
)
async def test_the_tolerance_of_last_number_is_relative(text, answer, value):
    assert await load_reward("last_number", {"tolerance": 0.01})(answered(text), {"answer": answer}) == value


async def test_only_marked_functions_run_on_the_event_loop_thread():
    threads = []

    def judge(trajectory, task):
        threads.append(threading.current_thread())
        return 1

    await RewardFunction(judge, name="slow")(answered(""), {})
    await RewardFunction(inline(judge), name="fast")(answered(""), {})
    assert threads[0] is not threading.main_thread()
    assert threads[1] is threading.main_thread()


async def test_slow_reward_does_not_block_the_event_loop():
    release = threading.Event()

    def judge(trajectory, task):
        assert release.wait(5)
        return 0.5

    async def unblock():
        release.set()

    value, _ = await asyncio.gather(RewardFunction(judge, name="slow")(answered(""), {}), unblock())
    assert value == 0.5


async def test_async_rewards_are_awaited():
    async def judge(trajectory, task):
        await asyncio.sleep(0)
        return {"reward": 0.25, "accuracy": True}

    trajectory = answered("")
    assert await RewardFunction(judge, name="async")(trajectory, {}) == 0.25
    assert trajectory.metrics == {"reward/accuracy": 1.0}


@pytest.mark.parametrize(
    ("outcome", "error", "words"),
    [
        (None, WrongTypeError, "returned None as the reward: it must be a number"),
        ("1.0", WrongTypeError, "returned str '1.0'"),
        ([1.0], WrongTypeError, r"returned list \[1.0\]"),
        (float("nan"), ValueError, "returned nan as the reward: it must be a finite number"),
        (float("inf"), ValueError, "finite"),
        ({"score": 1.0}, WrongTypeError, "without 'reward': it has score"),
        ({"reward": None}, WrongTypeError, "returned None as the reward"),
        ({"reward": 1.0, "note": "good"}, WrongTypeError, "returned str 'good' as the value of 'note'"),
        ({"reward": 1.0, "turn_rewards": 1.0}, WrongTypeError, "'turn_rewards': it must be a list"),
    ],
)
async def test_invalid_results_raise(outcome, error, words):
    def odd(trajectory, task):
        return outcome

    with pytest.raises(error, match=words) as caught:
        await RewardFunction(inline(odd), name="odd")(answered(""), {})
    assert str(caught.value).startswith("odd (test_function.py, line ")


async def test_function_exception_propagates():
    def judge(trajectory, task):
        raise ZeroDivisionError("division by zero")

    with pytest.raises(ZeroDivisionError):
        await RewardFunction(judge, name="broken")(answered(""), {})


def test_unknown_names_and_wrong_signatures_raise_user_error(tmp_path):
    (tmp_path / "r.py").write_text("def one(trajectory):\n    return 1\nvalue = 1\n")
    with pytest.raises(UserError, match=r"no reward 'exat'\. Did you mean 'exact'"):
        load_reward("exat")
    with pytest.raises(UserError, match=r"cannot be called as reward\(trajectory, task, "):
        load_reward(f"{tmp_path}/r.py:one")
    with pytest.raises(UserError, match="is of type int: name a function"):
        load_reward(f"{tmp_path}/r.py:value")
    with pytest.raises(UserError, match=r"no option 'tolerence'.*Did you mean 'tolerance'"):
        load_reward("last_number", {"tolerence": 1})


async def test_sync_methods_of_a_class_run_in_threads():
    class Blocking(Reward):
        def start(self):
            self.started_in = threading.current_thread().name

        def __call__(self, trajectory, task):
            return {"reward": 1.0, "in_thread": threading.current_thread().name.startswith("agentloop-reward")}

    reward = RewardFunction(blocking := Blocking(), name="blocking")
    await reward.start()
    assert blocking.started_in.startswith("agentloop-reward")
    assert (await reward.judge(Trajectory(), {})).metrics == {"in_thread": 1.0}


def test_verl_function_error_explains_how_to_name_it(tmp_path):
    (tmp_path / "score.py").write_text("def compute_score(data_source, solution_str, ground_truth, extra_info): ...")
    with pytest.raises(UserError, match=r"written for verl: set env.reward to verl"):
        load_reward(f"{tmp_path}/score.py:compute_score")


def test_trl_function_error_explains_how_to_write_it(tmp_path):
    (tmp_path / "score.py").write_text("def reward(completions, answer, **kwargs): ...")
    with pytest.raises(UserError, match=r"written for TRL.*a function \(trajectory, task\)"):
        load_reward(f"{tmp_path}/score.py:reward")


def test_class_that_is_not_a_reward_names_the_base_class(tmp_path):
    (tmp_path / "own.py").write_text("class Own:\n    def __call__(self, trajectory, task): return 1.0\n")
    with pytest.raises(UserError, match=r"must derive from agentloop.envs.rewards.Reward"):
        load_reward(f"{tmp_path}/own.py:Own")


async def test_failing_constructor_or_start_names_its_location(tmp_path):
    (tmp_path / "own.py").write_text(
        "from agentloop.envs.rewards import Reward\n"
        "class Own(Reward):\n"
        "    def __init__(self, file): self.rows = open(file)\n"
        "class Late(Reward):\n"
        "    def start(self): raise OSError('no server')\n"
        "    def __call__(self, trajectory, task): return 1.0\n"
        "Own.__call__ = Late.__call__\nOwn.__abstractmethods__ = frozenset()\n"
    )
    with pytest.raises(UserError, match=r"cannot be created: FileNotFoundError: .* \(own.py, line 3\)"):
        load_reward(f"{tmp_path}/own.py:Own", {"file": "nothing.txt"})
    with pytest.raises(UserError, match=r"cannot start: OSError: no server \(own.py, line 5\)"):
        await load_reward(f"{tmp_path}/own.py:Late").start()


async def test_a_reward_that_cannot_shut_down_is_logged(caplog):
    class Broken(Reward):
        async def shutdown(self):
            raise OSError("the judge is gone")

        async def __call__(self, trajectory, task):
            return 1.0

    await RewardFunction(Broken(), name="broken").shutdown()
    assert "The reward 'broken' failed to shut down" in caplog.text


async def test_a_reward_that_hangs_at_its_shutdown_does_not_hold_up_the_end(monkeypatch, caplog):
    class Hangs(Reward):
        async def shutdown(self):
            await asyncio.Event().wait()

        async def __call__(self, trajectory, task):
            return 1.0

    monkeypatch.setattr("agentloop.envs.rewards.function.SHUTDOWN_SECONDS", 0.05)
    async with asyncio.timeout(20):
        await RewardFunction(Hangs(), name="hangs").shutdown()
    assert "took longer than 0.05 s" in caplog.text
