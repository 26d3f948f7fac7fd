from typer.testing import CliRunner

from agentloop.cli import app
from agentloop.errors import UserError


def test_a_run_without_ray_names_a_command_that_can_be_copied(tmp_path):
    run = tmp_path / "my run"
    run.mkdir()
    (run / "config.yaml").write_text("workers: {kind: local}\n")
    error = CliRunner().invoke(app, ["workers", str(run), "3"]).exception
    assert isinstance(error, UserError)
    assert f"agentloop train '{run}/config.yaml' workers.kind=ray workers.count=3" in str(error)
