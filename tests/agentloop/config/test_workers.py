from pathlib import Path

import pytest

from agentloop.config.loading import load_config
from agentloop.config.resolved import Facts, resolve
from agentloop.config.run import RunConfig
from agentloop.errors import UserError


@pytest.mark.parametrize(
    "override",
    [
        "workers.count=2",
        "workers.address=auto",
        "workers.gpus=0.5",
        "workers.cpus=2",
        "workers.weights=objects",
        "workers.show_logs=true",
    ],
)
def test_settings_of_actors_need_their_kind(sums, override):
    with pytest.raises(UserError, match=r"set workers\.kind=ray too\.$") as caught:
        load_config(RunConfig, sums / "config.yaml", [override])
    assert f"{override.partition('=')[0]} would have no effect" in str(caught.value)
    load_config(RunConfig, sums / "config.yaml", [override, "workers.kind=ray"])


def test_a_worker_has_whole_gpus_or_a_part_of_one(sums):
    def gpus(value):
        return load_config(RunConfig, sums / "config.yaml", ["workers.kind=ray", f"workers.gpus={value}"]).workers.gpus

    assert [gpus(value) for value in (0, 0.25, 1, 2)] == [0, 0.25, 1, 2]
    with pytest.raises(UserError, match=r"whole number of GPUs or a fraction of one, not 1\.5"):
        gpus(1.5)


def test_vllm_gets_its_part_of_a_gpu(sums):
    def options(*overrides):
        config = load_config(RunConfig, sums / "config.yaml", ["workers.kind=ray", *overrides])
        return resolve(config, Facts(model=Path("m"))).engine.options

    vllm = "engine={name: vllm, options: {max_num_seqs: 8}}"
    plain = {"max_num_seqs": 8, "model": "m", "max_model_len": 512}
    shared = plain | {"shares_gpu": True}
    assert options(vllm, "workers.gpus=0.5") == shared | {"gpu_memory_utilization": 0.45}
    mine = "engine.options.gpu_memory_utilization=0.2"
    assert options(vllm, "workers.gpus=0.5", mine) == shared | {"gpu_memory_utilization": 0.2}
    assert options(vllm, "workers.gpus=1") == options(vllm) == plain
    assert "shares_gpu" not in options("engine={name: hf, options: {}}", "workers.gpus=0.5")
