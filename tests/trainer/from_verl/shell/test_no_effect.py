"""No script, with whatever is in it, starts a process, opens a file or keeps the converter busy."""

import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.cli import main
from agentloop.trainer.from_verl.shell.interpreter import follow

_events: list[str] | None = None


def _heard(event: str, arguments: tuple[object, ...]) -> None:
    if _events is not None and event.split(".")[0] in (
        "open",
        "os",
        "subprocess",
        "socket",
        "shutil",
        "signal",
        "ctypes",
    ):
        _events.append(f"{event}{arguments!r:.200}")


def _effects(script: str, **variables: str) -> list[str]:
    """Return the audit events of a script: system calls that could start, open or change anything."""
    global _events
    if not _effects.__dict__.setdefault("hooked", False):
        sys.addaudithook(_heard)  # cannot be removed again
        _effects.__dict__["hooked"] = True
    _events = []
    try:
        follow(script, "run.sh", ["first", "second"], {"PWD": "/tmp", "HOME": "/root", **variables})
        return _events
    finally:
        _events = None


def test_the_hook_hears_what_a_script_could_do(tmp_path: Path):
    _effects("")
    global _events
    _events = []
    (tmp_path / "made").write_text("x")
    heard, _events = _events, None
    assert heard


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
    ],
)
def test_an_attack_has_no_effect(script: str):
    for each in (script, *script.split("; ")):
        assert _effects(each) == []


_PIECES = st.sampled_from(
    [
        " ", " ", "\n", ";", "&", "|", "&&", "||", "(", ")", "((", "))", "{ ", " }", "[[ ", " ]]", "$(", "`", "${", "}",
        "'", '"', "\\", "<(", ">(", "> made", "< /etc/passwd", "<<EOF\n", "\nEOF\n", "<<< ", "$x", "$@", "$((", "x=",
        "x+=", "x=(", "x[1]=", "${x:-", "${x//", "${!x}", "${x@P}", "if ", "; then ", "; fi", "while ", "; do ",
        "; done",
        "for i in ", "case $x in ", ") ", ";; ", "esac", "f() ", "! ", "{1..9}", "{a,b}", "* ", "~", "$'\\x41'",
        "eval ",
        "exec ", "builtin ", "command ", "kill -9 -1", "source x", "sort -o made", "python -c x", "touch made",
        "curl x",
        "cat made", "read x", "echo ", "printf '%s' ", "export x=1", "declare -A x", "local y", "set -- ", "shift",
        "unset x", "trap 'touch made' 0", "test -f x", "[ a = b ]", "let x=1", "break", "exit", "return", "true",
        "a", "1",
        "-o", "==", "+", "*", "/", "%", "**", "?", ":", ",", "#", "\U000f0001", "é", "\x00", "\ud800",
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.lists(_PIECES, max_size=40).map("".join), st.text(max_size=80)))
def test_no_text_has_an_effect(script: str):
    assert _effects(script, x="$(touch made)") == []


@pytest.mark.parametrize(
    "script",
    [
        "while true; do sleep 1; done",
        "until curl x; do :; done",
        "f() { f; }; f",
        "f() { echo $(f); }; f",
        "x=a; while :; do x=$x$x; done",
        "x='x'; echo $((x))",
        "echo {1..999999999}",
        "echo " + "{a,b}" * 40,
        "echo $(seq 1 999999999)",
        "echo " + "$((" * 500,
        "echo " + "$(" * 500,
        "((" * 500,
        "echo " + '"${x:-' * 500,
        "[[ " + "( " * 500,
        "echo $((" + "(" * 500 + "1" + ")" * 500 + "))",
        "echo $((" + "-" * 5000 + "1))",
        "x=" + "a" * 50_000 + "; echo ${x//*a*a*a*a*a*b/c} ${x%%*b*c*d}",
        "[[ " + "a" * 20_000 + " == " + "*a" * 50 + "b ]]",
        "printf '%999d%999d' " + "1 " * 5000,
        "for ((;;)); do :; done",
        "eval 'eval \"eval $0\"'; f() { eval f; }; f",
        "a=(); while :; do a+=(x); done",
        "x=1; while :; do export x$x=1; x=$((x + 1)); done",
    ],
    ids=lambda script: script[:30],
)
def test_a_script_without_end_is_left(script: str):
    """Check that work is bounded: within seconds, where a shell runs for ever or until memory is full."""
    begun = time.process_time()
    record = follow(script, "run.sh", [], {})
    assert record.complaint or len(script) > 1000
    assert time.process_time() - begun < 30


def test_secrets_do_not_reach_the_config(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t")
    (tmp_path / "key").write_text("s3cr3t")
    values = [
        "$WANDB_API_KEY", "${WANDB_API_KEY:-none}", "${!name}", "$(env)", "$(printenv WANDB_API_KEY)", "$(export -p)",
        "$(declare -p)", "$(set)", f"$(cat {tmp_path}/key)", f"$(<{tmp_path}/key)", f"$(head -n 1 < {tmp_path}/key)",
        "$(cat /proc/self/environ)", "${WANDB_API_KEY:+${WANDB_API_KEY}}", r"\${oc.env:WANDB_API_KEY,none}",
        f"$line$(read -r l < {tmp_path}/key; echo $l)",
        "$((WANDB_API_KEY))", "$(python -c 'print(1)')", "$(compgen -e)",
    ]  # fmt: skip
    for number, value in enumerate(values):
        script = tmp_path / f"{number}.sh"
        script.write_text(
            f"name=WANDB_API_KEY\nread -r line < {tmp_path}/key\npython3 -m verl.trainer.main_ppo "
            f'data.train_files=a.parquet actor_rollout_ref.model.path="m{value}" '
            f'trainer.experiment_name="e{value}" +data.x="{value}"\n'
        )
        with pytest.raises(SystemExit) as ended:
            main(["from-verl", str(script)])
        printed = capsys.readouterr()
        assert (not ended.value.code, "s3cr3t" in printed.out + printed.err) == (True, False), value
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
    assert "is not named: add --env WANDB_API_KEY" in " ".join(capsys.readouterr().err.split())
