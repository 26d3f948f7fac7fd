from typer.testing import CliRunner

from agentloop.cli import app
from agentloop.errors import UserError
from agentloop.trainer.run.lock import locked


def test_a_run_without_ray_names_a_command_that_can_be_copied(tmp_path):
    run = tmp_path / "my run"
    run.mkdir()
    (run / "config.yaml").write_text("workers: {kind: local}\n")
    error = CliRunner().invoke(app, ["workers", str(run), "3"]).exception
    assert isinstance(error, UserError)
    assert f"agentloop train '{run}/config.yaml' workers.kind=ray workers.count=3" in str(error)


def test_only_a_run_that_is_running_gets_another_number_of_workers(tmp_path):
    run = tmp_path / "my run"
    run.mkdir()
    (run / "config.yaml").write_text("workers: {kind: ray, count: 2}\n")
    with locked(run):
        result = CliRunner().invoke(app, ["workers", str(run), "3"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Requested 3 workers for the run in {run}. If they do not fit, the run's output")
    assert (run / "workers").read_text() == "3 instead of 2\n"
    (run / "workers").unlink()
    error = CliRunner().invoke(app, ["workers", str(run), "3"]).exception
    assert isinstance(error, UserError)
    assert (
        f"is not running, so it has no workers to change. Resume it with the new number: agentloop train '{run}/"
        in str(error)
    )
    assert not (run / "workers").exists()
