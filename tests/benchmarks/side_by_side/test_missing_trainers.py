"""Programs that need another trainer explain themselves without it."""

import subprocess
import sys

import pytest

_WITHOUT = "import sys; sys.modules[{0!r}] = None; from benchmarks.side_by_side.{0}_run import main; main()"


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "version"), [("trl", "1.16.0"), ("verl", "0.9.1")])
def test_a_missing_trainer_is_named_with_its_pip_command(tmp_path, trainer, version):
    def run(*arguments):
        command = [sys.executable, "-c", _WITHOUT.format(trainer), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    shown = run("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--micro-batch" in shown.stdout
    refused = run("model", "data", str(tmp_path / "curve.jsonl"))
    assert refused.returncode == 2
    assert refused.stderr.endswith(f"{trainer} is not installed. Run: pip install {trainer}=={version}\n")
    assert list(tmp_path.iterdir()) == []
