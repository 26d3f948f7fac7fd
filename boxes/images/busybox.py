"""The image `builtin:busybox`: the static busybox of this machine, with a user and the usual directories.

It needs no registry, so small tasks run anywhere.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from agentloop.errors import UserError

NAME = "builtin:busybox"
_PLACES = ("/bin/busybox", "/usr/bin/busybox")
_FOLDERS = ("bin", "etc", "root", "tmp", "home/worker", "srv", "usr", "var")
_ACCOUNTS = "root:x:0:0:root:/root:/bin/sh\nworker:x:1000:1000::/home/worker:/bin/sh\n"
_GROUPS = "root:x:0:\nworker:x:1000:\n"


def key() -> str:
    """Return the identity of the image. Raises `UserError` if this machine has no static busybox."""
    return f"busybox-{hashlib.sha256(_program().read_bytes()).hexdigest()[:20]}"


def fill(tree: Path) -> None:
    """Write the root file system to a directory."""
    for folder in _FOLDERS:
        (tree / folder).mkdir(parents=True, exist_ok=True)
    (tree / "tmp").chmod(0o1777)
    (tree / "etc/passwd").write_text(_ACCOUNTS)
    (tree / "etc/group").write_text(_GROUPS)
    program = tree / "bin/busybox"
    shutil.copyfile(_program(), program)
    program.chmod(0o755)
    for name in subprocess.check_output([program, "--list"], text=True).split():
        if name != "busybox":
            (tree / "bin" / name).symlink_to("busybox")


def _program() -> Path:
    found = next((Path(place) for place in _PLACES if Path(place).is_file()), None)
    if found is None or b"\0/lib64/ld-linux" in found.read_bytes()[:4096]:
        raise UserError(f"The image {NAME} needs a static busybox: apt-get install busybox-static.")
    return found
