"""A dry run: a run without mistakes is described, and each kind of mistake is one paragraph and a code above 0."""

import json
import socket

import pytest
import torch
import yaml

from agentloop.api.recipe import built_in_recipes
from agentloop.cli import main
from agentloop.trainer.rehearsal import machine

pytestmark = pytest.mark.slow


@pytest.fixture
def dry_run(sums, capsys):
    """Return a function that makes a dry run with overrides, and returns its code and what it printed."""

    def rehearsed(*overrides, recipe=sums):
        with pytest.raises(SystemExit) as ended:
            main(["train", str(recipe), "--dry-run", *overrides])
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return ended.value.code, shown.out, shown.err

    return rehearsed


@pytest.fixture
def refused(dry_run):
    """Return a function that makes a dry run with a mistake, and returns its error, one paragraph."""

    def of(*overrides):
        code, _, error = dry_run(*overrides)
        assert code == 2
        return error.strip().splitlines()[-1]

    return of


def rows(sums, *rows):
    path = sums / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.train={path}", "data.train_options={}"


def reward(sums, body):
    (sums / "mine.py").write_text(f"def reward(trajectory, task):\n    return {body}\n")
    return f"env.reward={sums}/mine.py:reward"


def test_a_dry_run_prints_settings_derived_values_and_checks(sums, dry_run):
    code, shown, _ = dry_run("learner.lr=0.25", f"run.folder={sums}/run")
    assert code == 0
    settings, _, rest = shown.partition("\n\n")
    assert yaml.safe_load(settings)["learner"]["lr"] == 0.25
    assert yaml.safe_load(settings)["data"]["train"] == f"{sums}/sums.py:tasks"
    assert "keep_last" not in settings
    for text in (
        "10 to train on, 3 held out",
        "12 = 3 tasks x 4",
        "longest episode  512 tokens",
        "(all 10 rows)",
        "row '0': 2 turns, ended as completed, reward 0",
        "add answered a sample call: '",
        "read answer",
    ):
        assert text in rest
    assert not (sums / "run").exists()
    assert "keep_last" in dry_run("--full")[1]


def test_full_needs_a_dry_run(sums, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", str(sums), "--full"])
    assert ended.value.code == 2
    assert "add --dry-run" in capsys.readouterr().err


def test_a_reward_that_reads_a_missing_column(sums, refused):
    error = refused(reward(sums, "float(task['anser'])"))
    assert "could not be scored by the reward" in error
    assert "KeyError: 'anser'" in error
    assert "the columns answer, id, messages, prompt" in error


def test_rows_without_the_column_are_found_behind_the_first(sums, refused):
    error = refused(*rows(sums, {"prompt": "a", "answer": 1}, {"prompt": "b"}))
    assert "row '1' of data.train could not be scored" in error


def test_rows_of_an_evaluation_need_the_column_too(sums, refused, dry_run):
    (sums / "held_out.jsonl").write_text('{"prompt": "b"}\n')
    data = (f"data.eval={sums}/held_out.jsonl", "data.eval_options={}")
    assert "row '0' of data.eval could not be scored" in refused(*data, "eval.every=1")
    assert dry_run(*data, "eval.every=0")[0] == 0


@pytest.mark.parametrize(
    ("value", "why"),
    [("None", "it must be a number"), ("'good'", "it must be a number"), ("float('nan')", "could not be scored")],
)
def test_a_reward_that_is_no_number(sums, refused, value, why):
    assert why in refused(reward(sums, value))


def test_a_column_that_no_row_has_is_a_warning(sums, dry_run):
    code, shown, _ = dry_run(reward(sums, "float(task.get('anser', 0))"))
    assert code == 0
    assert "The column 'anser' is read, but no row has it" in shown


def test_columns_that_no_row_needs_are_no_warning(sums, dry_run):
    (sums / "mine.py").write_text(
        "async def run(task, players):\n"
        "    await players['first'].say(task['prompt'])\n"
        "    return {'first': float(task.get('anser', 1))}\n"
    )
    options = f"env.options={{play: '{sums}/mine.py:run', players: {{first: policy}}, swap: true}}"
    code, shown, _ = dry_run("env.factory=players", options, "env.tools=[]", "env.reward=null")
    assert code == 0
    assert "The column 'anser' is read, but no row has it" in shown


def test_a_folder_that_cannot_be_written_to(sums, refused):
    (sums / "taken").touch()
    error = refused(f"run.folder={sums}/taken/run")
    assert f"The run folder {sums}/taken/run cannot be written to: Not a directory. Set run.folder" in error


@pytest.mark.parametrize(
    ("override", "mend"),
    [
        ("learner.reference=./none", "Set learner.reference to a folder in Hugging Face format"),
        (
            "algorithm.distillation={teacher: ./none}",
            "Set algorithm.distillation.teacher to an existing folder, or to a name on the hub",
        ),
    ],
)
def test_a_second_model_that_does_not_exist(override, mend, refused):
    assert mend in refused(override)


def test_a_call_that_does_not_fit_into_a_turn_is_a_warning(sums, dry_run):
    code, shown, _ = dry_run("limits.max_turn_tokens=4")
    assert code == 0
    assert "tokens, more than limits.max_turn_tokens=4. Raise that limit." in " ".join(shown.split())


def test_a_tool_that_fails_is_a_warning(sums, dry_run):
    (sums / "mine.py").write_text("def broken(a: int) -> str:\n    'Fail.'\n    raise OSError('no server')\n")
    code, shown, _ = dry_run(f"env.tools=[{sums}/mine.py:broken]")
    assert code == 0
    assert "The tool broken failed at a sample call:" in shown
    assert "no server" in shown


def test_prompts_that_are_too_long(sums, dry_run, refused):
    short, long = ({"prompt": text, "answer": 1} for text in ("a", "a " * 900))
    code, shown, _ = dry_run(*rows(sums, short, short, long))
    assert code == 0
    assert "1 of 3 prompts leave no room to sample within 512 tokens" in shown
    assert "limits.max_tokens is 512, but each of the 1 prompts" in refused(*rows(sums, long))


def test_templates_without_tools_and_unknown_ones(sums, refused, dry_run):
    (sums / "plain.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    error = refused(f"rendering.chat_template={sums}/plain.jinja")
    assert "does not show the tools add" in error
    assert "rendering.chat_template to builtin:hermes" in error
    assert "Did you mean 'hermes'?" in refused("rendering.chat_template=builtin:hermse")
    assert dry_run("rendering.chat_template=builtin:hermes")[0] == 0


def test_missing_packages_and_gpus(refused, monkeypatch):
    found = machine.find_spec
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name in ("wandb", "sglang") else found(name))
    error = refused("run.loggers=[wandb]", "engine.name=sglang", "engine.options={}")
    assert "engine.name=sglang needs sglang (pip install 'agentloop[sglang]')" in error
    assert "run.loggers=wandb needs wandb (pip install 'agentloop[wandb]')" in error
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "learner.device is cuda, but torch finds no GPU" in refused("learner.device=cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "engine.name is vllm, which needs a GPU" in refused("engine.name=vllm", "engine.options={}")


@pytest.mark.parametrize(
    ("engine", "error"),
    [
        ("{name: hf, options: {max_slot: 4}}", "no option 'max_slot'. Did you mean 'max_slots'?"),
        ("{name: sglang, options: {url: 'http://localhost:1', api_key_variable: NO_KEY}}", "'NO_KEY' of api_key_vari"),
        pytest.param(
            "{name: vllm, options: {block_sise: 16}}",
            "no engine argument 'block_sise' (engine.options). Did you mean 'block_size'?",
            marks=pytest.mark.vllm,
        ),
    ],
)
def test_options_that_the_engine_does_not_take(refused, engine, error):
    assert error in refused(f"engine={engine}")


def test_an_address_of_workers_must_respond(refused, dry_run):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        code, shown, _ = dry_run("workers.kind=ray", f"workers.address={address}")
        assert code == 0
        assert f"{address} responds" in shown
    error = refused("workers.kind=ray", f"workers.address={address}")
    assert f"No response from workers.address='{address}'" in error
    assert "with workers.address=auto." in refused("workers.kind=ray", "workers.address=ray://head:10001")
    code, shown, _ = dry_run("workers.kind=ray", f"workers.address={address}", "placement={n_gpus: 8, gpu: H200}")
    assert code == 0
    code, shown, _ = dry_run("workers.kind=ray", "workers.address=auto")
    assert "Not checked: the Ray cluster that workers.address=auto looks for" in shown


def test_an_environment_that_fails(sums, refused):
    (sums / "mine.py").write_text(
        "from agentloop import Env\n"
        "class Broken(Env):\n"
        "    def __init__(self, row, **parts): pass\n"
        "    async def reset(self): raise RuntimeError('no board')\n"
        "    async def step(self, message): raise AssertionError\n"
    )
    error = refused(f"env.factory={sums}/mine.py:Broken", "env.tools=[]", "env.reward=null")
    assert "failed in its environment" in error
    assert "no board" in error
    assert "Correct the environment." in error


def test_an_error_with_advice_gets_no_other(sums, refused):
    (sums / "mine.py").write_text(
        "from agentloop import Env\n"
        "from agentloop.boxes.interface.box import BoxError\n"
        "from agentloop.errors import UserError\n"
        "class Broken(Env):\n"
        "    def __init__(self, row, **parts): raise UserError('No board. Buy one.')\n"
        "    async def reset(self): raise AssertionError\n"
        "    async def step(self, message): raise AssertionError\n"
        "class Boxed(Env):\n"
        "    async def reset(self): raise BoxError('No room for the box. Remove others.')\n"
        "    async def step(self, message): raise AssertionError\n"
        "def reward(trajectory, task):\n"
        "    raise UserError('No scale. Buy one.')\n"
    )
    error = refused(f"env.factory={sums}/mine.py:Broken", "env.tools=[]", "env.reward=null")
    assert error.rstrip().endswith("No board. Buy one."), error
    error = refused(f"env.factory={sums}/mine.py:Boxed", "env.tools=[]", "env.reward=null")
    assert error.rstrip().endswith("raised BoxError (mine.py, line 9): No room for the box. Remove others."), error
    error = refused(f"env.reward={sums}/mine.py:reward")
    assert error.rstrip().endswith("raised UserError (mine.py, line 12): No scale. Buy one."), error


@pytest.mark.parametrize("name", sorted(set(built_in_recipes()) - {"chain", "tiny"}))
def test_full_scale_recipes_need_no_weights_and_no_network(name, sums, dry_run, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = (*rows(sums, {"prompt": "a", "answer": "1"}), f"data.eval={sums}/rows.jsonl", "data.eval_options={}")
    code, shown, error = dry_run("env.tools=[]", *data, recipe=name)
    assert code == 0, error
    assert "its built-in shape is used" in shown
    assert "Not checked: chat template, prompt lengths, an episode" in shown
    assert "1 to train on" in shown


@pytest.mark.parametrize("name", ["tiny", *(f"{name}/tiny.yaml" for name in ("retool", "search_r1", "frozen_lake"))])
def test_small_recipes_play_their_episode(name, dry_run):
    path = built_in_recipes()["tiny"].parents[1] / name
    code, shown, error = dry_run("data.train_limit=20", "data.eval_limit=3", recipe=path)
    assert code == 0, error
    assert ", ended as " in shown


OWN_TOOL = """
from agentloop import Env, Observation, ToolResult, Toolset, tool
from agentloop.errors import UnscoredError

@tool
def guess(number: int) -> ToolResult:
    "Guess a number."
    return ToolResult("wrong")

class Game(Env):
    def __init__(self, row):
        self.toolset = Toolset([guess])

    async def reset(self):
        return Observation([{"role": "user", "content": "Guess."}])

    async def step(self, message):
        return Observation(), 0.0, True, False

    async def score(self, trajectory):
        raise UnscoredError("no guess was scored")
"""


def test_tools_of_the_environment_are_called_and_an_episode_that_it_does_not_score_is_a_warning(sums, dry_run):
    (sums / "game.py").write_text(OWN_TOOL)
    code, shown, errors = dry_run("env.reward=null", "env.tools=[]", f"env.factory={sums}/game.py:Game")
    assert code == 0
    assert "chat template    shows the tools" in shown
    assert "guess answered a sample call: 'wrong'" in shown
    assert "The episode was not scored: no guess was scored." in shown + errors


def test_a_score_that_raises_names_the_environment(sums, refused):
    (sums / "game.py").write_text(OWN_TOOL.replace('UnscoredError("no guess was scored")', 'KeyError("guess")'))
    error = refused("env.reward=null", "env.tools=[]", f"env.factory={sums}/game.py:Game")
    assert f"could not be scored by the environment {sums}/game.py:Game: the reward raised KeyError: 'guess'" in error
