"""Help and shell completion of every command."""

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from agentloop.api.progress import RunProgress
from agentloop.cli import app
from tests.support.reference_pages import commands

pytestmark = pytest.mark.slow


def run(*arguments, **environment):
    return CliRunner().invoke(app, list(arguments), env=environment, prog_name="agentloop")


def completed(*words):
    """Return what a shell offers for the last word."""
    environment = {"COMP_WORDS": " ".join(("agentloop", *words)), "COMP_CWORD": str(len(words))}
    return run(_AGENTLOOP_COMPLETE="complete_bash", **environment).output.split()


@pytest.mark.parametrize("command", [[], ["tools"], *(name.split() for name, _ in commands())])
def test_every_command_has_short_and_long_help(command):
    short, long = run(*command, "-h"), run(*command, "--help")
    assert short.exit_code == 0
    assert "Usage" in short.output
    assert short.output == long.output


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["t"], ["train", "tools", "tasks"]),
        (["tools", "s"], ["serve"]),
        (["view", "--po"], ["--port"]),
        (["rollout", "--tasks", ""], ["train", "eval"]),
        (["train", "ti"], ["tiny"]),
        (["config", "learner.lr_"], ["learner.lr_schedule"]),
        (["nonsense", "t"], ["train", "tools", "tasks"]),
    ],
)
def test_a_shell_completes_commands_options_and_values(words, offered):
    assert completed(*words) == offered


def test_progress_fits_into_80_columns():
    screen = io.StringIO()
    progress = RunProgress(Console(file=screen, width=80, force_terminal=True))
    metrics = {
        "reward/mean": 0.5, "rollout/tool_call_rate": 0.5, "rollout/turns": 12.5, "failures/episodes": 100.0,
        "learner/logprob_diff": 0.0123, "time/rollout": 1234.5, "time/train": 1234.5, "time/publish": 123.4,
        "eval/reward/mean": 0.5,
    }  # fmt: skip
    with progress:
        progress.on_step(1000, metrics)
    assert "…" not in screen.getvalue()
    assert "1234.5" in screen.getvalue()
