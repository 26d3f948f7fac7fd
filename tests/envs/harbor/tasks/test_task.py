import logging

import pytest

from agentloop.envs.harbor.tasks.config import RewardStrategy
from agentloop.envs.harbor.tasks.machine import NetworkMode
from agentloop.envs.harbor.tasks.task import HarborTask, without_canary
from agentloop.envs.harbor.tasks.variables import resolved
from agentloop.errors import UserError

_FILES = {
    "task.toml": "",
    "instruction.md": "Do it.",
    "environment/Dockerfile": "FROM scratch\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
}


def folder_with(root):
    for name, text in _FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def with_config(root, text):
    folder_with(root)
    (root / "task.toml").write_text(text)
    return root


def test_an_empty_task_toml_has_the_defaults_of_harbor(tmp_path):
    task = HarborTask.load(folder_with(tmp_path))
    [step] = task.steps
    assert task.name == tmp_path.name
    assert step.instruction == "Do it."
    assert task.config.environment.network_mode is NetworkMode.PUBLIC
    assert (step.agent_timeout, step.verifier_timeout, step.is_separate) == (None, 600.0, False)
    assert step.test_folders == (tmp_path / "tests",)


def test_legacy_keys_mean_what_they_meant(tmp_path):
    task = HarborTask.load(
        with_config(
            tmp_path, 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\n'
        )
    )
    environment = task.config.environment
    assert task.config.schema_version == "1.0"
    assert (environment.memory_mb, environment.storage_mb) == (2048, 512)
    assert environment.network_mode is NetworkMode.NO_NETWORK


def test_unknown_keys_are_logged_once(tmp_path, caplog):
    with_config(tmp_path, "[agent]\ntimeout_secs_of_another_age = 3\n")
    with caplog.at_level(logging.WARNING):
        HarborTask.load(tmp_path)
        HarborTask.load(tmp_path)
    assert [record.args[1] for record in caplog.records] == ["agent.timeout_secs_of_another_age"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[agent", "is not valid TOML"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1\n', "verifier: environment_mode"),
        ('[[steps]]\nname = "a/b"\n', "steps.0.name"),
        ('[environment]\nallowed_hosts = ["a.org"]\n', "network_mode = 'allowlist'"),
        ('[environment]\nmemory = "2"\n', "must end in G, M or K"),
        ('artifacts = ["/a/../b"]\n', "must not contain '..'"),
        ("[agent]\ntimeout_sec = -1\n", "agent.timeout_sec"),
        ("[verifier]\ntimeout_sec = 0\n", "verifier.timeout_sec"),
    ],
)
def test_a_bad_task_toml_is_one_clear_error(tmp_path, text, problem):
    with pytest.raises(UserError) as raised:
        HarborTask.load(with_config(tmp_path, text))
    assert problem in str(raised.value)
    assert str(tmp_path / "task.toml") in str(raised.value)


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("task.toml", "it has no task.toml"),
        ("instruction.md", "has no instruction.md"),
        ("tests/test.sh", "has no tests/test.sh"),
    ],
)
def test_a_missing_file_is_one_clear_error(tmp_path, missing, problem):
    folder_with(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(UserError, match=problem):
        HarborTask.load(tmp_path)


def test_an_instruction_in_another_encoding_is_refused(tmp_path):
    folder_with(tmp_path)
    (tmp_path / "instruction.md").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"instruction\.md is not UTF-8 .*: write it in UTF-8\."):
        HarborTask.load(tmp_path)


def test_a_task_without_an_image_is_refused(tmp_path):
    folder_with(tmp_path)
    (tmp_path / "environment/Dockerfile").unlink()
    (tmp_path / "environment").rmdir()
    with pytest.raises(UserError, match="names no docker_image"):
        HarborTask.load(tmp_path)


def test_a_link_out_of_the_task_is_refused(tmp_path):
    folder_with(tmp_path / "task")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "task/tests/secret").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="leads out of the task"):
        HarborTask.load(tmp_path / "task")


def test_steps_inherit_what_they_do_not_say(tmp_path):
    with_config(
        tmp_path,
        'multi_step_reward_strategy = "final"\nartifacts = ["/app/a"]\n'
        "[agent]\ntimeout_sec = 9\nuser = 1000\n"
        '[verifier]\nuser = "root"\nenvironment_mode = "separate"\n[verifier.env]\nA = "1"\nB = "1"\n'
        '[[steps]]\nname = "one"\n'
        '[[steps]]\nname = "two"\nmin_reward = 0.5\nartifacts = ["/app/b"]\n'
        "[steps.agent]\ntimeout_sec = 3\n"
        '[steps.verifier]\nenvironment_mode = "shared"\n[steps.verifier.env]\nB = "2"\n',
    )
    for name in ("one", "two"):
        (tmp_path / "steps" / name).mkdir(parents=True)
        (tmp_path / "steps" / name / "instruction.md").write_text(f"# canary 1\n\nStep {name}.")
    task = HarborTask.load(tmp_path)
    one, two = task.steps
    assert task.config.multi_step_reward_strategy is RewardStrategy.FINAL
    assert (one.instruction, two.instruction) == ("Step one.", "Step two.")
    assert (one.agent_timeout, two.agent_timeout) == (9, 3)
    assert (one.agent_user, two.verifier_user) == (1000, "root")
    assert (one.is_separate, two.is_separate) == (True, False)
    assert (one.verifier_env, two.verifier_env) == ({"A": "1", "B": "1"}, {"A": "1", "B": "2"})
    assert [each.source for each in two.artifacts] == ["/app/a", "/app/b"]
    assert two.test_folders == (tmp_path / "tests",)


def test_a_separate_verifier_with_a_dockerfile_brings_its_tests(tmp_path):
    folder_with(tmp_path)
    (tmp_path / "task.toml").write_text('[verifier]\nenvironment_mode = "separate"\n')
    [step] = HarborTask.load(tmp_path).steps
    assert step.verifier_box is not None
    assert (step.verifier_box.folder, step.verifier_box.has_tests) == (tmp_path / "environment", False)
    (tmp_path / "tests/Dockerfile").write_text("FROM scratch\n")
    assert (step.verifier_box.folder, step.verifier_box.has_tests) == (tmp_path / "tests", True)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<!-- Canary 7 -->\n# x CANARY\n\n\nDo it.\n# canary", "Do it.\n# canary"),
        ("\n\nDo it.", "Do it."),
        ("Do it.", "Do it."),
        ("# Title\nDo it.", "# Title\nDo it."),
    ],
)
def test_canaries_at_the_top_are_left_out(text, left):
    assert without_canary(text) == left


def test_variables_of_this_machine(monkeypatch):
    monkeypatch.setenv("AGENTLOOP_TEST_A", "a")
    references = {"A": "${AGENTLOOP_TEST_A}", "B": "${AGENTLOOP_TEST_B:-b}", "C": "x${AGENTLOOP_TEST_A}"}
    assert resolved(references) == {"A": "a", "B": "b", "C": "x${AGENTLOOP_TEST_A}"}
    with pytest.raises(UserError, match="AGENTLOOP_TEST_B"):
        resolved({"B": "${AGENTLOOP_TEST_B}"})
