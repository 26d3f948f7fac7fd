import pytest

from agentloop.trainer.learner.metrics.gpu_peaks import _DENSE_BFLOAT16, peak_of


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H20", 148),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
    ],
)
def test_names_of_drivers(name: str, tera: int):
    assert peak_of(name) == tera * 1e12


def test_an_unknown_device_has_none():
    assert peak_of("Something of 2031") is None


def test_no_name_hides_a_longer_one():
    names = list(_DENSE_BFLOAT16)
    assert not [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if a in b]
