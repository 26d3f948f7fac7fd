"""Commands on several GPUs: each has its own, needs what ran before it, and leaves nothing behind."""

import json
import shlex
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import on_gpus
from benchmarks.on_gpus import Job

ROOT = Path(on_gpus.__file__).parents[1]


def test_the_commands_of_the_file_exist():
    jobs = on_gpus.load()
    assert all(set(job.after) <= set(jobs) for job in jobs.values())
    for job in jobs.values():
        words = shlex.split(job.command)
        modules = [words[place + 1] for place, word in enumerate(words) if word == "-m"]
        for module in modules:
            if module != "pytest":
                path = module.removeprefix("agentloop.").replace(".", "/")
                assert (ROOT / f"{path}.py").is_file(), module
        for file in (word for word in words if word.startswith("tests/gpu")):
            assert (ROOT / file).is_file()


def test_what_a_job_needs_comes_first():
    jobs = {"a": Job("a", "", 1, after=["b"]), "b": Job("b", "", 1), "c": Job("c", "", 1, after=["a"])}
    assert [job.name for job in on_gpus.chosen(jobs, ["c", "b"])] == ["b", "a", "c"]
    with pytest.raises(KeyError, match="nothing"):
        on_gpus.chosen(jobs, ["nothing"])


@pytest.mark.slow
def test_each_command_has_gpus_of_its_own_and_an_end(tmp_path: Path):
    show = "echo $CUDA_VISIBLE_DEVICES; sleep 0.5"
    jobs = [
        Job("first", show, 20),
        Job("second", show, 20),
        Job("both", "echo $CUDA_VISIBLE_DEVICES > $FOLDER/both", 20, gpus=2),
        Job("fails", "exit 3", 20),
        Job("needs it", "true", 20, after=["fails"]),
        Job("too many", "true", 20, gpus=3),
        Job("hangs", "sleep 777 & echo $!; sleep 777", 1.0),
    ]
    statuses = on_gpus.run(jobs, tmp_path, 2)
    assert statuses == {
        **dict.fromkeys(("first", "second", "both"), 0),
        "fails": 3,
        "needs it": 125,
        "too many": 125,
        "hangs": 124,
    }
    assert {(tmp_path / f"{name}.log").read_text() for name in ("first", "second")} == {"0\n", "1\n"}
    assert (tmp_path / "both").read_text() == "0,1\n"
    child = int((tmp_path / "hangs.log").read_text())
    deadline = time.monotonic() + 5
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    lines = [json.loads(line) for line in (tmp_path / "status.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines if line["job"] == "hangs" and "status" in line] == [124]
