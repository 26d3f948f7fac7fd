"""The script that makes the image of the level `docker`, with other programs in place of those that it calls."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_SCRIPT = Path(__file__).parents[3] / "scripts" / "sandbox-image"
_PROGRAMS = {
    "id": "echo 0",
    "debootstrap": 'for last; do :; done; mkdir -p "$last/usr/bin"',
    "docker": 'cat > "$IMPORTED"',
}


def test_every_user_can_enter_the_root_of_the_image(tmp_path):
    for name, text in _PROGRAMS.items():
        (program := tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    image = tmp_path / "image.tar"
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run([_SCRIPT], check=True, env={"PATH": path, "IMPORTED": str(image)}, umask=0o077)
    with tarfile.open(image) as archive:
        assert archive.getmember(".").mode & 0o777 == 0o755
