"""From a launch script of verl to a trained model, with a dataset and a reward written for verl."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from agentloop.cli import main

pytestmark = pytest.mark.slow

CHECKPOINT = Path(__file__).parents[3] / "recipes" / "tiny" / "checkpoint"

SCRIPT = """
set -xeuo pipefail
cd "$(dirname "$0")"
ARGUMENTS=(
    algorithm.adv_estimator=grpo
    algorithm.rollout_correction.rollout_is=token
    data.train_files="['$PWD/a.parquet', '$PWD/b.parquet']"
    data.val_files=$PWD/b.parquet
    data.train_batch_size=2
    data.filter_overlong_prompts=True
    data.max_prompt_length=80
    data.max_response_length=16
    custom_reward_function.path=$PWD/reward.py
    +custom_reward_function.reward_kwargs.scale=2
    actor_rollout_ref.model.path=$MODEL
    actor_rollout_ref.actor.ppo_mini_batch_size=1
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n=2
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    trainer.n_gpus_per_node=1
    trainer.logger=console
)
python3 -m verl.trainer.main_ppo "${ARGUMENTS[@]}" "$@" > run.log 2>&1
"""

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info, scale):
    assert data_source == "sums" and ground_truth == "3"
    return {"score": scale * len(solution_str), "letters": len(solution_str)}
"""


def _dataset(path: Path, *prompts: str) -> None:
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": prompt}],
            "reward_model": {"style": "rule", "ground_truth": "3"},
            "extra_info": {"index": index},
        }
        for index, prompt in enumerate(prompts)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), path)


def _agentloop(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code


def test_a_launch_script_trains_a_model(tmp_path: Path, capsys):
    _dataset(tmp_path / "a.parquet", "1 + 2 = ?", "2 + 1 = ?" * 99)
    _dataset(tmp_path / "b.parquet", "0 + 3 = ?")
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "reward.py").write_text(REWARD)
    run, config = tmp_path / "run", tmp_path / "run.yaml"
    model = f"MODEL={CHECKPOINT}"
    _agentloop("from-verl", "--env", model, str(tmp_path / "run.sh"), "trainer.total_epochs=1", "-o", str(config))
    assert "0 settings that were not converted" in capsys.readouterr().out
    _agentloop("train", str(config), "--dry-run", "placement.gpu=H100")
    printed = capsys.readouterr().out
    assert "2 to train on, 1 held out" in printed  # the long prompt is filtered out
    assert "colocated: 1 GPUs" in printed
    here = ["placement={}", "engine={name: hf}", "learner.compute_dtype=float32", "learner.device=cpu"]
    _agentloop("train", str(config), f"run.folder={run}", *here)
    assert "step 1: reward" in capsys.readouterr().out
    assert (run / "model" / "model.safetensors").is_file()
    assert not (tmp_path / "run.log").exists()
