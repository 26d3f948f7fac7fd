"""Programs that run as another user than root."""

import os
import subprocess
import sys
from pathlib import Path

NOBODY = 65534


def run_as_nobody(program: str, *arguments: str, seconds: float = 120) -> "subprocess.CompletedProcess[str]":
    """Run Python code as the user nobody. `os.geteuid` must be 0.

    If the interpreter is in a home directory that nobody can enter, it is mounted elsewhere.
    """
    assert os.geteuid() == 0, "only root can become nobody"
    prefix, home = Path(sys.executable).resolve().parents[1], Path.home()
    show = ""
    if prefix.is_relative_to(home):
        way = f"mkdir -p {prefix} && mount --bind /mnt {prefix}"
        show = f"mount --bind {prefix} /mnt && mount -t tmpfs -o mode=755 tmpfs {home} && {way} && "
    source = Path(__file__).parents[2]
    become = f"exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups"
    command = f'cd {source} && {show}{become} "$0" -c "$@"'
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", command, sys.executable, program, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
        env={"PATH": os.environ["PATH"], "HOME": "/", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
