import pytest

from tests.boxes.conftest import box, provider, spec, tree

__all__ = ["box", "provider", "spec", "tree"]


@pytest.fixture(scope="module")
def provider_name():
    return "rootfs"
