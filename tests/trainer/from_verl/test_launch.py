import re
from pathlib import Path

import pytest
import yaml

from agentloop.cli import main
from agentloop.errors import UserError
from agentloop.trainer.from_verl import convert
from agentloop.trainer.from_verl.config import visible
from agentloop.trainer.from_verl.launch import Launch, Script, launch_of, read_script

SCRIPT = r"""
#!/usr/bin/env bash
set -xeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export PATH=/opt/verl/bin:$PATH
MODEL=${MODEL:-Qwen/Qwen3-8B}
DEVICE=$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)
batch=64
ACTOR=(
    actor_rollout_ref.model.path=$MODEL
    actor_rollout_ref.actor.ppo_mini_batch_size=$((batch / 4))
)
if [ "$DEVICE" = npu ]; then ACTOR+=(trainer.device=npu); fi
[[ $batch > 10 ]] && ACTOR+=(actor_rollout_ref.actor.strategy=fsdp2)
mkdir -p logs; rm -rf logs/*; ray stop --force
cat > reward.py <<END
nothing
END
until nvidia-smi; do sleep 5; done
nohup python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_batch_size=$batch \
    data.train_files="['$PWD/a.parquet', '$PWD/b.parquet']" \
    "${ACTOR[@]}" \
    trainer.logger='["console","wandb"]' $@ > "logs/run $(date +%s).log" 2>&1 | tee all.log
"""


def _script(folder: Path, text: str) -> Path:
    (folder / "examples").mkdir()
    path = folder / "examples" / "run.sh"
    path.write_text(text)
    return path


def _read(script: Path, *arguments: str, **variables: str) -> Script:
    return read_script(script, arguments, visible(variables))


@pytest.mark.slow
def test_a_script_is_followed_without_any_effect(tmp_path: Path):
    script = _script(tmp_path, SCRIPT)
    kept = tmp_path / "examples" / "logs" / "old.log"
    kept.parent.mkdir()
    kept.write_text("kept")
    (launch,) = _read(script, "trainer.nnodes=2").launches
    folder = tmp_path / "examples"
    assert launch == Launch(
        "verl.trainer.main_ppo",
        (
            "algorithm.adv_estimator=grpo",
            "data.train_batch_size=64",
            f"data.train_files=['{folder}/a.parquet', '{folder}/b.parquet']",
            "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
            "actor_rollout_ref.actor.ppo_mini_batch_size=16",
            "actor_rollout_ref.actor.strategy=fsdp2",
            'trainer.logger=["console","wandb"]',
            "trainer.nnodes=2",
        ),
    )
    assert sorted(path.name for path in folder.rglob("*")) == ["logs", "old.log", "run.sh"]
    assert kept.read_text() == "kept"


@pytest.mark.slow
def test_named_variables_count_as_in_a_run(tmp_path: Path):
    variables = {"MODEL": "./mine"}
    converted = convert(_script(tmp_path, SCRIPT), "trainer.total_training_steps=9", variables=variables)
    assert (converted.config["model"], converted.config["run"]["steps"]) == ("./mine", 9)
    assert len(converted.config["data"]["train"]) == 2


@pytest.mark.slow
def test_a_missing_variable_of_a_script_is_reported(tmp_path: Path):
    script = _script(tmp_path, "M=${MODEL_DIR:?set it to a folder}\npython -m verl.trainer.main_ppo trainer.nnodes=1\n")
    with pytest.raises(UserError, match=r"does not start verl \(line 1: MODEL_DIR: set it to a folder\).*--env NAME"):
        convert(script)
    with pytest.raises(UserError, match="cannot be read"):
        convert(tmp_path / "nothing.sh")


@pytest.mark.slow
def test_a_number_from_a_program_that_does_not_run_is_an_error(tmp_path: Path):
    """Check that `$(...)` of such a program is empty."""
    script = _script(tmp_path, 'python -m verl.trainer.main_ppo trainer.n_gpus_per_node=$(nvidia-smi -L) "$@"\n')
    with pytest.raises(UserError, match=r"n_gpus_per_node is '', which is not a number.*add trainer\.n_gpus_per_node="):
        convert(script)
    assert convert(script, "trainer.n_gpus_per_node='4'").config["placement"]["n_gpus"] == 4


@pytest.mark.parametrize(
    ("command", "launch"),
    [
        ("data.train_batch_size=8", Launch("verl.trainer.main_ppo", ("data.train_batch_size=8",))),
        (
            "uv run --extra vllm python -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer ~trainer.logger",
            Launch("verl.trainer.main_ppo", ("~trainer.logger",), None, "ppo_megatron_trainer"),
        ),
        (
            "torchrun --nnodes=1 train/mine.py --config-path ./config -cn mine +algorithm.x=1 ++reward.y=a.py",
            Launch("train/mine.py", ("+algorithm.x=1", "++reward.y=a.py"), "./config", "mine"),
        ),
        (
            "env A=1 PYTHONUNBUFFERED=1 srun -m block python -m verl.trainer.main_ppo data.seed=1 data.x = 2 --foo",
            Launch("verl.trainer.main_ppo", ("data.seed=1",), others=("data.x", "=", "2", "--foo")),
        ),
        (
            "x.y=1 trainer.nnodes 2 data.seed=1",
            Launch("verl.trainer.main_ppo", ("x.y=1", "data.seed=1"), others=("trainer.nnodes", "2")),
        ),
        ("ray start --head", None),
        ("python -m pip install x==1", None),
    ],
)
def test_commands(command: str, launch: Launch | None):
    assert launch_of(command.split()) == launch


@pytest.mark.parametrize(
    "inner",
    [
        "python3 -m recipe.dapo.main_dapo actor_rollout_ref.rollout.n=16",
        "cd verl && python3 -m recipe.dapo.main_dapo 'actor_rollout_ref.rollout.n=16' 2>&1 | tee all.log",
        "export A=1\npython3 -m recipe.dapo.main_dapo \\\n  actor_rollout_ref.rollout.n=16 > log\necho done",
    ],
)
def test_a_command_inside_a_command(inner: str):
    assert launch_of(["srun", "-N1", "bash", "-c", inner]) == Launch(
        "recipe.dapo.main_dapo", ("actor_rollout_ref.rollout.n=16",)
    )


def test_words_that_are_no_settings_are_refused():
    with pytest.raises(UserError, match=r"has 'data\.seed', '=', '7', '--multirun', which .*as one word, key=value"):
        convert("-m", "verl.trainer.main_ppo", "data.x=1", "data.seed", "=", "7", "--multirun")


@pytest.mark.slow
def test_every_unset_variable_of_a_setting_is_named(tmp_path: Path):
    script = _script(
        tmp_path,
        'python3 -m verl.trainer.main_ppo trainer.experiment_name="${MODEL##*/}-$(date +%s)" '
        "trainer.project_name=$(hostname)-$JOB-$RANDOM data.seed=${SEED:-3}\n",
    )
    assert _read(script).notes == (
        "trainer.experiment_name is empty in place of $MODEL, which is not set.",
        "trainer.project_name is empty in place of the output of hostname, which does not run.",
        "trainer.project_name is empty in place of $JOB, which is not set.",
    )


@pytest.mark.slow
def test_words_from_xargs_are_mentioned(tmp_path: Path):
    script = _script(tmp_path, "echo trainer.nnodes=5 | xargs python3 -m verl.trainer.main_ppo data.seed=1\n")
    assert _read(script).notes == (
        "The script passes words to verl through xargs, which are not read: add them to this command.",
    )


@pytest.mark.slow
def test_options_of_a_script_come_after_dashes(tmp_path: Path, capsys):
    text = (
        "while [ $# != 0 ]; do M=$2; shift 2; done\npython3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$M\n"
    )
    script = str(_script(tmp_path, text))
    with pytest.raises(SystemExit) as ended:
        main(["from-verl", "--", script, "--model", "qwen"])
    assert not ended.value.code
    assert "model: qwen" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["from-verl", script, "--model=qwen"])
    assert ended.value.code == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "There is no option '--model'. If it belongs to the script, write -- before the script: agentloop" in shown
    with pytest.raises(SystemExit):
        main(["from-verl", script, "--ouput", "run.yaml"])
    assert "There is no option '--ouput'. Did you mean '--output'?" in capsys.readouterr().err


@pytest.mark.slow
def test_settings_after_the_end_of_the_command_are_named(tmp_path: Path):
    script = _script(
        tmp_path,
        "python3 -m verl.trainer.main_ppo data.seed=1 \\\n  # data.x=1 \\\n  trainer.nnodes=2 \\\n  data.y=3\n",
    )
    read = _read(script)
    assert read.launches == (Launch("verl.trainer.main_ppo", ("data.seed=1",)),)
    (note,) = read.notes
    assert note.startswith("trainer.nnodes, data.y: these lines of the script belong to no command")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "program"),
    [
        ("if nvidia-smi | grep -q H100; then X=1; fi", "nvidia-smi"),
        ("while read -r each; do X=1; done < <(nvidia-smi -L)", "nvidia-smi -L"),
        ("nvidia-smi || X=1", "nvidia-smi"),
        ("if command -v nvidia-smi > /dev/null; then X=1; fi", "command -v nvidia-smi"),
    ],
)
def test_a_setting_that_differs_with_a_program_is_named(tmp_path: Path, lines: str, program: str):
    """Check programs whose output or success leaves no mark in a setting or a condition."""
    script = _script(tmp_path, f"X=2\n{lines}\npython3 -m verl.trainer.main_ppo data.seed=1 trainer.nnodes=$X\n")
    (note,) = _read(script).notes
    assert note.startswith("trainer.nnodes would be set otherwise if programs printed something or failed.")
    assert note.endswith(f": check {program}.")


@pytest.mark.slow
@pytest.mark.parametrize("value", ["$(( $(nvidia-smi -L | wc -l) + 1 ))", "$(python3 -c 'print(4)' || echo 4)"])
def test_a_setting_computed_from_an_output_is_named(tmp_path: Path, value: str):
    script = _script(tmp_path, f'X="{value}"\npython3 -m verl.trainer.main_ppo data.seed=1 trainer.nnodes=$((X * 2))\n')
    (note,) = _read(script).notes
    assert re.fullmatch(r"trainer\.nnodes depends on the output of (nvidia-smi|python3) .*, which does not run\.", note)


@pytest.mark.slow
@pytest.mark.parametrize("total", ["$((NODES * 2))", "$((16#ff * (2 + NODES)))", "$(($NODES + 2))", "$((TWICE + 1))"])
def test_a_setting_computed_from_an_unset_variable_is_named(tmp_path: Path, total: str):
    """Check that variables which are set, as GPUS, get no note."""
    lines = "GPUS=4\nTWICE=$((NODES * 2))\n"
    script = _script(
        tmp_path,
        f"{lines}python3 -m verl.trainer.main_ppo data.seed=1 trainer.nnodes={total} trainer.save_freq=$((GPUS / 2))\n",
    )
    (note,) = _read(script).notes
    assert note == "trainer.nnodes depends on the variable NODES, which is not set."


@pytest.mark.slow
def test_configs_written_by_the_user(tmp_path: Path):
    """Check that the keys of a config given by --config-path and --config-name count as set."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "multiturn.yaml").write_text(
        yaml.safe_dump(
            {
                "hydra": {"searchpath": ["file://verl/trainer/config"]},
                "defaults": ["ppo_megatron_trainer", "_self_"],
                "actor_rollout_ref": {"rollout": {"multi_turn": {"enable": True, "max_assistant_turns": 5}}},
                "data": {"max_response_length": 512, "surprise": 1},
            }
        )
    )
    script = _script(
        tmp_path,
        "python -m verl.trainer.main_ppo --config-path=./config --config-name='multiturn' data.max_prompt_length=100\n",
    )
    converted = convert(script)
    assert converted.config["limits"]["max_turns"] == 5
    assert converted.config["limits"]["max_tokens"] == 612
    assert converted.config["learner"]["backend"] == "megatron"
    assert converted.lacks == ["data.surprise was set, but has no counterpart here."]
    script.write_text(script.read_text().replace("multiturn", "other"))
    with pytest.raises(UserError, match=r"There is no config other\.yaml in \./config"):
        convert(script)


def test_other_trainers_than_that_of_verl():
    with pytest.raises(UserError, match=r"verl\.trainer\.sft_trainer does not train with rewards"):
        convert("-m", "verl.trainer.sft_trainer", "data.train_files=x.parquet")
    (lack,) = convert("-m", "recipe.spin.main_spin", "data.train_files=x.parquet").lacks
    assert "recipe.spin.main_spin is a custom trainer" in lack
    with pytest.raises(UserError, match="is not a config of verl, a script"):
        convert("nothing")


@pytest.mark.slow
def test_the_command_from_verl(tmp_path: Path, capsys):
    script = _script(tmp_path, SCRIPT)
    for words in (
        [str(script), "-o", str(tmp_path / "run.yaml"), "--env", "MODEL=m", "trainer.nnodes=2"],
        ["--", "data.seed=3", "+data.x=1"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["from-verl", *words])
        assert not ended.value.code
    printed = capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "run.yaml").read_text())["placement"]["n_gpus"] == 16
    assert "run.yaml. Its first lines list 0 settings that were not converted" in printed
    assert "# Not converted:\n# - data.x was set" in printed
    assert yaml.safe_load(printed.partition("\n")[2])["run"]["seed"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("run.sh", "run.sh exists. Write to a new file."),
        (".", "exists. Write to a new file."),
        ("run.sh/run.yaml", "cannot be written: "),
    ],
)
def test_an_output_that_exists_or_cannot_be_written_is_refused(tmp_path: Path, capsys, output: str, says: str):
    script = _script(tmp_path, "python3 -m verl.trainer.main_ppo data.seed=3\n").rename(tmp_path / "run.sh")
    text = script.read_text()
    with pytest.raises(SystemExit) as ended:
        main(["from-verl", str(script), "-o", str(tmp_path / output)])
    assert ended.value.code == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert says in error
    assert script.read_text() == text


def test_the_output_may_be_in_a_new_folder_with_a_space(tmp_path: Path, capsys):
    output = tmp_path / "my runs" / "run.yaml"
    with pytest.raises(SystemExit) as ended:
        main(["from-verl", "-o", str(output), "--", "data.seed=3", "actor_rollout_ref.model.path=modèle"])
    assert not ended.value.code
    assert f"Next: agentloop train '{output}' --dry-run\n" in capsys.readouterr().out
    assert "model: modèle" in output.read_text(encoding="utf-8")
