"""No script can change this machine, reach it, see its secrets or keep the converter busy."""

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentloop.cli import main
from agentloop.trainer.from_verl.shell.running import Record, follow

pytestmark = pytest.mark.slow


@pytest.fixture
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """A process that scripts try to end."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def _follow(script: str, folder: Path) -> Record:
    variables = {"PWD": str(folder), "HOME": str(folder), "x": "$(touch made)"}
    return follow(script, str(folder / "run.sh"), ["first", "second"], variables)


@pytest.mark.parametrize(
    "script",
    [
        "sort -o made run.sh",
        "sort -S 1 --compress-program=./evil <(cat /etc/passwd /etc/services)",
        "builtin kill -9 -1; command kill -9 -1; kill -9 $$; enable -f ./evil.so evil",
        "echo x > made; echo y >> made; : >| made; exec 3<> made; cat <<< z > made; echo >&3",
        "/bin/touch made; \\touch made; command touch made; exec touch made",
        "eval 'touch made'; source ./evil; . ./evil; trap 'touch made' EXIT; $(touch made); `touch made`",
        "x='$(touch made)'; eval \"echo $x\"; y='a[$(touch made)]'; echo $((y)); [[ -v $y ]]; echo ${!y}",
        "coproc touch made; touch made & wait; (touch made) | (touch made); { touch made; }",
        "alias ls='touch made'; ls; f() { touch made; }; f; cd() { touch made; }; cd /",
        "printf -v PATH . ; BASH_ENV=./evil bash -c 'touch made'; env touch made; xargs touch < made",
        "mapfile -C 'touch made' -c 1 x < /etc/passwd; read x < /etc/passwd; x=$(</etc/passwd); cat /etc/passwd",
        "exec {fd}>/dev/tcp/127.0.0.1/80; echo GET >/dev/tcp/localhost/80",
        "history -w made; hash -p ./evil ls; ls; set -o posix; ulimit -c unlimited; umask 0; kill -STOP 1",
        "builtin trap - DEBUG; PATH=/usr/bin:/bin; touch made; cat key; pkill sleep; python3 -c 'open(\"made\")'",
        "builtin cd FOLDER; builtin exec /bin/sh -c 'echo x > FOLDER/made; cat FOLDER/key; kill -9 NEIGHBOUR'",
    ],
)
def test_an_attack_has_no_effect(script: str, tmp_path: Path, monkeypatch, neighbour):
    """Check that files, processes and the environment of this machine stay as they are, and out of sight."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t")
    (tmp_path / "key").write_text("s3cr3t")
    script = script.replace("FOLDER", str(tmp_path)).replace("NEIGHBOUR", str(neighbour.pid))
    record = _follow(f"cd {tmp_path}\n{script}\nshow $(cat key) $(env) $WANDB_API_KEY\n", tmp_path)
    assert os.listdir(tmp_path) == ["key"]
    assert neighbour.poll() is None
    assert "s3cr3t" not in f"{record}"


async def test_a_script_reaches_no_server_of_this_machine():
    reached = asyncio.Event()
    server = await asyncio.start_server(lambda *_: reached.set(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        script = f"exec {{fd}}<>/dev/tcp/127.0.0.1/{port}; echo GET >/dev/tcp/127.0.0.1/{port} && show reached"
        record = await asyncio.to_thread(_follow, script, Path("/tmp"))
        await asyncio.sleep(0.1)
    assert not reached.is_set()
    assert ["show", "reached"] not in record.commands


@pytest.mark.parametrize("script", ["\0\ud800\n\U000f0001", "a\r\nb\r\n", "$(" * 500, "echo $((" + "-" * 5000])
def test_any_text_can_be_followed(script: str, tmp_path: Path):
    assert isinstance(_follow(script, tmp_path).complaint, str)


@pytest.mark.parametrize(
    "script",
    [
        "while true; do :; done",
        "f() { f; }; f",
        "f() { f | f & }; f; while :; do :; done",
        "x=a; while :; do x=$x$x; done",
        "echo {1..999999999}",
        "while :; do echo x >> x; curl x; done",
        "builtin kill -9 -1",
    ],
)
def test_a_script_without_end_is_left(script: str, tmp_path: Path):
    begun = time.monotonic()
    assert _follow(script, tmp_path).complaint
    assert time.monotonic() - begun < 60


def test_secrets_do_not_reach_the_config(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t")
    (tmp_path / "key").write_text("s3cr3t")
    values = [
        "${WANDB_API_KEY:-none}", "${!name}", "$(env)", "$(printenv WANDB_API_KEY)", "$(export -p | wc -c)",
        f"$(cat {tmp_path}/key)", f"$(<{tmp_path}/key)", f"$(head -n 1 < {tmp_path}/key)",
        "$(tr -d '\\0' < /proc/self/environ | wc -c)", "${WANDB_API_KEY:+${WANDB_API_KEY}}",
        f"$line$(read -r l < {tmp_path}/key; echo $l)", "$((WANDB_API_KEY))", "$(compgen -e)",
    ]  # fmt: skip
    settings = [f'+data.x{number}="{value}"' for number, value in enumerate(values)]
    for number, value in enumerate(["$WANDB_API_KEY", r"\${oc.env:WANDB_API_KEY,none}"]):
        (tmp_path / f"{number}.sh").write_text(
            f"name=WANDB_API_KEY\nread -r line < {tmp_path}/key\npython3 -m verl.trainer.main_ppo "
            f'data.train_files=a.parquet actor_rollout_ref.model.path="m{value}" '
            f'trainer.experiment_name="e{value}" {" ".join(settings)}\n'
        )
        with pytest.raises(SystemExit) as ended:
            main(["from-verl", str(tmp_path / f"{number}.sh")])
        printed = capsys.readouterr()
        assert (not ended.value.code, "s3cr3t" in printed.out + printed.err) == (True, False), printed.err
    for value in ("$(declare -p)", "$(set)", "$(export -p)", "$(cat /proc/*/environ)"):
        assert "s3cr3t" not in str(_follow(f"show '{value}' {value}", tmp_path))
    with pytest.raises(SystemExit):
        main(["from-verl", str(tmp_path / "0.sh"), "--env", "WANDB_API_KEY"])
    assert "model: ms3cr3t" in capsys.readouterr().out


def test_an_interpolation_of_a_script_is_not_resolved_later(tmp_path: Path, monkeypatch, capsys):
    """Check that an escaped `${oc.env:...}` is not resolved when the new config is read."""
    from agentloop.config.loading import load_config
    from agentloop.config.run import RunConfig

    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t")
    with pytest.raises(SystemExit):
        main(["from-verl", "-o", str(tmp_path / "run.yaml"), "--", "data.train_files=/a.parquet",
              r"actor_rollout_ref.model.path='/m/\${oc.env:WANDB_API_KEY}'"])  # fmt: skip
    assert load_config(RunConfig, tmp_path / "run.yaml").model == "/m/${oc.env:WANDB_API_KEY}"
    with pytest.raises(SystemExit):
        main(["from-verl", "--", "data.train_files=/a.parquet", "actor_rollout_ref.model.path=${oc.env:WANDB_API_KEY}"])
    assert "is not passed: add --env WANDB_API_KEY" in " ".join(capsys.readouterr().err.split())
