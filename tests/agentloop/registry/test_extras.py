"""Without the packages of an extra, every command and every use of the extra ends in a sentence with the pip command.

The packages of all extras are hidden from the import system of a new process, as if they were not installed.
"""

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import typer

from agentloop.cli import app
from agentloop.registry.extras import extra_with

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
EXTRAS = {
    name: packages for name, packages in EXTRAS.items() if name not in ("all", "dev", "docs", "fla", "grammar")
}  # no command needs fla or grammar: fla makes models faster, and requests of agents need grammar

HIDING = """
import io, json, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import PathFinder

hidden, calls = json.load(sys.stdin)
found = PathFinder.find_spec


@classmethod
def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in hidden else found(name, path, target)


PathFinder.find_spec = find_spec

from agentloop.cli import main

for call in calls:
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown):
        try:
            main(call)
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = None
    print(json.dumps([call, code, shown.getvalue()]))
"""

ARGUMENTS = {
    "train": ["tiny"],
    "rollout": ["tiny"],
    "export": ["run", "out"],
    "plan": ["tiny"],
    "view": ["run"],
    "workers": ["run", "2"],
    "from-verl": ["--", "python3", "-m", "verl.trainer.main_ppo"],
    "tools call": ["code_interpreter", "code=print(1)"],
    "tools index": ["corpus.jsonl", "index"],
    "init": ["env", "mine"],
    "rewards try": ["exact", "3", "answer=3"],
}
"""Arguments with which a command does its work. One that is not here runs without."""

NEEDS = {"demo": "train", "train": "train", "rollout": "train", "view": "serve", "tools serve": "serve"}
"""Extra without which a command cannot run."""

USES = {
    "docker": ["tools", "call", "code_interpreter", "code=1", "--option", "sandbox=docker"],
    "gym": ["rollout", "tiny", "env.factory=gymnasium", "env.options={id: FrozenLake-v1}"],
    "harbor": ["tools", "call", "terminal", "keys=ls"],
    "math": ["rollout", "tiny", "env.reward=math"],
    "megatron": ["train", "tiny", "learner.backend=megatron"],
    "mlflow": ["train", "tiny", "run.loggers=[mlflow]"],
    "openenv": ["rollout", "tiny", "env.factory=openenv", "env.options={url: 'http://127.0.0.1:9'}"],
    "parquet": ["rollout", "tiny", "data.eval=x.parquet", "data.eval_options={}"],
    "ray": ["train", "tiny", "workers.kind=ray"],
    "serve": ["view", "run"],
    "sglang": ["rollout", "tiny", "engine={name: sglang}"],
    "sql": ["tools", "call", "sql_query", "sql=select 1", "--option", "database=x.duckdb"],
    "tantivy": ["tools", "index", "corpus.jsonl", "folder", "--engine", "tantivy"],
    "train": ["train", "tiny"],
    "vllm": ["rollout", "tiny", "engine={name: vllm}"],
    "wandb": ["train", "tiny", "run.loggers=[wandb]"],
    "web": ["tools", "call", "web_fetch", "url=http://127.0.0.1:9"],
}
"""A command that uses each extra."""


installed_modules = cache(packages_distributions)  # reads the files of all packages: a second


def modules_of(extra):
    """Return the top-level modules of the packages of an extra."""
    names = {re.match(r"[\w-]+", package)[0].lower() for package in EXTRAS[extra]}
    installed = {module for module, dists in installed_modules().items() if names & {dist.lower() for dist in dists}}
    return {module for module in installed if extra_with(module) == extra} | {name.replace("-", "_") for name in names}


def run_without(extras, calls, folder):
    """Run commands in a process that lacks the packages of `extras`; return (command, exit code, output) of each."""
    for name in ("checkpoints", "trajectories"):
        (folder / "run" / name).mkdir(parents=True)
    (folder / "run" / "config.yaml").write_text("workers: {kind: local}\n")
    (folder / "corpus.jsonl").write_text('{"id": "1", "contents": "some words"}\n')
    (folder / "x.parquet").write_text("")
    (folder / "x.duckdb").write_bytes(b"\0" * 8 + b"DUCK" + b"\0" * 100)
    hidden = sorted(set().union(*map(modules_of, extras)))
    done = subprocess.run(
        [sys.executable, "-c", HIDING], input=json.dumps([hidden, calls]), cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_command_of_a_bare_installation_works_or_names_its_extra(tmp_path):
    group = typer.main.get_command(app)
    context = typer.Context(group)
    loaded = {name: group.get_command(context, name).load() for name in group.list_commands(context)}
    names = [
        f"{name} {below}".strip() for name, command in loaded.items() for below in getattr(command, "commands", [""])
    ]
    assert {*ARGUMENTS, *NEEDS} <= set(names)
    calls = [[*name.split(), *ARGUMENTS.get(name, [])] for name in names]
    ended = run_without(EXTRAS, [*calls, ["train", "tiny", "--dry-run"]], tmp_path)
    for name, (call, code, shown) in zip([*names, "train"], ended, strict=True):
        assert code in (0, 1, 2), (call, shown)
        assert "Traceback" not in shown, (call, shown)
        if name in NEEDS:
            assert code == 2, (call, shown)
            assert f"pip install 'agentloop[{NEEDS[name]}]'" in shown, (call, shown)
            assert len(shown.strip().splitlines()) == 1, (call, shown)


def test_every_use_of_an_extra_names_it(tmp_path):
    assert set(USES) == set(EXTRAS)
    of_train = {"docker", "harbor", "serve", "sql", "tantivy", "train", "web"}
    bare = run_without(EXTRAS, [USES[extra] for extra in sorted(of_train)], tmp_path / "bare")
    rest = sorted(set(EXTRAS) - of_train)
    for extra, (call, code, shown) in zip(
        [*sorted(of_train), *rest],
        [*bare, *run_without(set(EXTRAS) - {"train"}, [USES[extra] for extra in rest], tmp_path / "rest")],
        strict=True,
    ):
        assert code == 2, (call, shown)
        assert f"pip install 'agentloop[{extra}]'" in shown, (call, shown)
        assert "Traceback" not in shown, (call, shown)
