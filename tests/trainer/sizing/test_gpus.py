import pytest

from agentloop.errors import UserError
from agentloop.trainer.sizing.gpus import KNOWN, find, find_device


@pytest.mark.parametrize(
    ("device", "name", "tera"),
    [
        ("NVIDIA H200", "H200", 989),
        ("NVIDIA GH200 480GB", "GH200", 989),
        ("NVIDIA H100 80GB HBM3", "H100", 989),
        ("NVIDIA H100 PCIe", "H100-PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB", 312),
        ("NVIDIA H20", "H20", 148),
        ("NVIDIA L40S", "L40S", 362),
        ("NVIDIA L4", "L4", 121),
        ("NVIDIA A10", "A10", 125),
        ("NVIDIA GeForce RTX 4090", "RTX-4090", 165),
    ],
)
def test_driver_device_names_are_recognized(device: str, name: str, tera: int):
    gpu = find_device(device)
    assert gpu is not None
    assert (gpu.name, gpu.flops) == (name, tera * 1e12)


def test_unknown_device_is_not_found():
    assert find_device("Something of 2031") is None


@pytest.mark.parametrize("name", KNOWN)
def test_every_gpu_is_found_by_its_name(name: str):
    assert find_device(f"NVIDIA {name.replace('-', ' ')}") is KNOWN[name]


def test_gpus_are_found_by_name_and_memory():
    assert find("h200:100").memory == 100 * 2**30
    with pytest.raises(UserError, match="Did you mean 'H200'"):
        find("H2000")
