"""Records of a script. `show` is a program that does not exist."""

import pytest

from agentloop import sandboxes
from agentloop.errors import UserError
from agentloop.trainer.from_verl.shell.running import Record, follow

pytestmark = pytest.mark.slow


def _follow(script: str, *arguments: str, **variables: str) -> Record:
    return follow(script, "/home/me/verl/run.sh", arguments, {"PWD": "/home/me", "HOME": "/home/me", **variables})


def _shown(record: Record) -> list[list[str]]:
    return [words[1:] for words in record.commands if words[0] == "show"]


def test_words_reach_a_program_as_in_a_shell():
    record = _follow(
        """set -euo pipefail
x='a  b'; a=(1 'b c'); a+=("$x"); n=$(seq 3 | wc -l); show $x "$x" "${a[@]}" "${y:-d}" $((n * 2)) "$@"
if [[ $n == 3 && ! -z $x ]]; then show then; else show else; fi
for i in {1..2}; do show $i; done; f() { local z=$1; show "$z${2^^}"; return 3; }; f p q || show $?
show "$(cat <<EOF
here $n
EOF
)" $'line\\nbreak' é ''
echo a,b | tr , '\\n' | while read -r each; do show "$each"; done
show "$(basename /m/Qwen3-8B.tar .tar)" "$(echo Qwen | sed 's/Q/q/' | tr a-z A-Z)" "$MODEL"
false; show end
""",
        "one",
        "two words",
        MODEL="m",
    )
    assert _shown(record) == [
        ["a", "b", "a  b", "1", "b c", "a  b", "d", "6", "one", "two words"], ["then"], ["1"], ["2"], ["pQ"], ["3"],
        ["here 3", "line\nbreak", "é", ""], ["a"], ["b"], ["Qwen3-8B", "QWEN", "m"], ["end"],
    ]  # fmt: skip
    assert (record.notes, record.complaint) == ([], "")


def test_folders_are_those_of_the_machine():
    record = _follow(
        'show "$0" "${BASH_SOURCE[0]}" $PWD; cd "$(dirname "$0")/.."; show $(pwd) "$(realpath data/../x)"\n'
        'D=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); show $D; cd; show $PWD; cd /data && show $PWD\n'
    )
    run = "/home/me/verl/run.sh"
    assert _shown(record) == [
        [run, run, "/home/me"], ["/home/me", "/home/me/x"], ["/home/me/verl"], ["/home/me"], ["/data"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        "show x > /data/logs/x.log 2>&1",
        'show \\\n    x > "logs/$(date +%s) a.log" 2>&1 | tee -a logs/all.log',
        "{ show x; } &> logs/x",
        "exec show x",
        "command show x",
        "PATH=/usr/bin:$PATH; show x",
        "set -e; set +x; trap 'show trap' EXIT DEBUG; set -- x; (show \"$@\") & wait",
        "/opt/conda/bin/show x",
        "./prepare.sh || exit 1; ../show x",
        "set -u; /usr/bin/python3 -m pip install y && show ${UNSET}x",
        "mkdir -p /data && until nvidia-smi; do sleep 9; done; show x",
        "python3 -c 'import torch_npu' 2>/dev/null && show npu || show x",
        "command -v nvidia-smi || show x",
        "eval 'show x'",
        "source env.sh; show x",
    ],
)
def test_every_way_to_start_a_program_is_recorded(command: str):
    assert _shown(_follow(command)) == [["x"]]


def test_unknown_values_are_marked():
    record = _follow(
        'N=$(nvidia-smi -L | wc -l); show n=$N d=${N:-8} u=$U/x own=${OWN:-1}; [ "$(uname)" = x ]; [ -n "$N" ]\n'
        'show f=$(< data.txt); . ./env.sh; if [ -d "$HOME" ]; then :; fi; read -r l < list; show l=$l\n',
        HOME="/usr",
    )
    assert _shown(record) == [["n=", "d=8", "u=/x", "own=1"], ["f="], ["l="]]
    marked = [word for words in record.marked if words[0] == "show" for word in words[1:]]
    smi = "the output of nvidia-smi -L, which does not run"
    file = ["a file, which is not read"]
    assert {record.plain(word): record.unknowns(word) for word in marked} == {
        "n=": [smi], "d=": [smi], "u=/x": ["$U, which is not set"], "own=1": [], "f=": file, "l=": file,
    }  # fmt: skip
    assert record.notes == [
        "The script sources ./env.sh, which is not read: check what it sets.",
        f"A condition or loop of the script depends on {smi}, which counts as empty.",
        "A condition of the script tests /usr, which does not exist in the sandbox: check it.",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "case $(smi) in a) ;; esac",
        'N=$(smi); case "${N}x" in a) ;; esac',
        "N=$(smi | wc -l); if ((N > 4)); then :; fi",
        "if (($(smi | wc -l) > 4)); then :; fi",
        "for each in a $(smi) b; do show $each; done",
        "f() { case $1 in a) ;; esac; }; f $(smi)",
    ],
)
def test_a_condition_or_loop_over_an_output_is_named(line: str):
    assert _follow(f"i=0; while ((i++ < 3)); do case $i in 1) ;; esac; done; {line}").notes == [
        "A condition or loop of the script depends on the output of smi, which does not run, which counts as empty."
    ]


def test_an_unset_variable_is_marked_in_every_form():
    record = _follow(
        'show "${M##*/}-$(date +%N)-$RANDOM" "${O##*/}" ${M%.*} ${M/a/b} ${M^^} ${M:0:2} ${M:-d} ${O:-d} ${D:=e}\n',
        O="/own/x",
    )
    unset = ["$M, which is not set"]
    (shown,), (marked,) = _shown(record), [words[1:] for words in record.marked]
    assert shown == [record.plain(marked[0]), "x", "d", "/own/x", "e"]
    assert [record.unknowns(word) for word in marked] == [unset, [], unset, unset, unset, unset, [], [], []]


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("show x\nM=${MODEL:?set it}\nshow y", "line 2: MODEL: set it"),
        ("show x\nif true; then\n", "line 3: syntax error: unexpected end of file"),
        ("show x; while ! curl y; do sleep 1; done", "it was still running after 3 seconds or 100 sleeps"),
    ],
)
def test_why_a_script_was_not_followed(script: str, complaint: str):
    record = _follow(script)
    assert record.complaint.startswith(complaint)
    assert _shown(record) == [["x"]]


def test_without_a_sandbox_nothing_runs(monkeypatch):
    async def start(_self):
        raise UserError("No sandbox level works on this machine.")

    monkeypatch.setattr(sandboxes.Auto, "start", start)
    with pytest.raises(UserError, match=r"no isolation level works.*user namespaces.*agentloop from-verl -- COMMAND"):
        _follow("show x")
