"""The file system of a box: a read-only image below a private layer of limited size."""

from __future__ import annotations

import os

from agentloop.boxes.inside import layer as own_layer
from agentloop.sandboxes.inside.isolation import libc, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_STAGE = "/tmp"
"""Mount point for assembling the file system, in a private mount namespace; any directory would do."""
_ROOT = f"{_STAGE}/root"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = (
    *(("/proc/self/fd", "fd"), ("/proc/self/fd/0", "stdin"), ("/proc/self/fd/1", "stdout")),
    *(("/proc/self/fd/2", "stderr"), ("pts/ptmx", "ptmx")),
)
_HOSTS = "127.0.0.1 localhost {name}\n::1 localhost\n"
_NO_SETID_DEVICES = libc.MS_NOSUID | libc.MS_NODEV
_FILES = 1 << 20
"""Maximum number of files in the private layer of a box."""


def build_root(
    layers: Sequence[int | str], storage_mb: int, name: str, workdir: str | None, content: int | None = None
) -> int:
    """Enter the file system of a box, and return a descriptor of its own layer.

    Needs CAP_SYS_ADMIN and a mount namespace of its own. `layers` are mounts or paths of root file systems, the
    uppermost first. `workdir` is created if missing. `content`, a stream of `layer.write`, fills the box's own layer.
    Raises `OSError`.
    """
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    # Paths may be below the directory that is covered next.
    opened = [layer if isinstance(layer, int) else os.open(layer, os.O_PATH | os.O_CLOEXEC) for layer in layers]
    devices = [(each, os.open(f"/dev/{each}", os.O_PATH | os.O_CLOEXEC)) for each in _DEVICES]
    old_proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    size = f"mode=0755,size={storage_mb}m,nr_inodes={_FILES}"
    libc.mount("tmpfs", _STAGE, "tmpfs", libc.MS_NODEV, size)
    # Linux lets a user namespace mount procfs only if one is visible.
    _show(old_proc, f"{_STAGE}/proc")
    lowers = []
    for number, (layer, fd) in enumerate(zip(layers, opened, strict=True)):
        lowers.append(f"{_STAGE}/{number}")
        if isinstance(layer, int):
            os.mkdir(lowers[-1])
            libc.attach(fd, lowers[-1])
        else:
            _show(fd, lowers[-1])
        os.close(fd)
    for path in ("upper", "work", "root"):
        os.mkdir(f"{_STAGE}/{path}", 0o755)
    if content is not None:
        with open(content, "rb", closefd=False) as stream:
            own_layer.read(stream, f"{_STAGE}/upper")
    own = os.open(f"{_STAGE}/upper", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    options = f"lowerdir={':'.join(lowers)},upperdir={_STAGE}/upper,workdir={_STAGE}/work,userxattr"
    libc.mount("overlay", _ROOT, "overlay", libc.MS_NODEV, options)
    _mount_kernel_files(devices, storage_mb)
    _name_machine(name)
    libc.pivot_root(_ROOT)
    if workdir is not None:
        os.makedirs(workdir, exist_ok=True)  # its links cannot leave the box any more
    return own


def _show(handle: int, target: str) -> None:
    os.mkdir(target)
    libc.mount(f"/proc/self/fd/{handle}", target, flags=libc.MS_BIND | libc.MS_REC)


def _mount_kernel_files(devices: Sequence[tuple[str, int]], storage_mb: int) -> None:
    for path in ("proc", "dev", "tmp"):
        _directory(f"{_ROOT}/{path}")
    libc.mount("proc", f"{_ROOT}/proc", "proc", _NO_SETID_DEVICES | libc.MS_NOEXEC)
    mounts.hide_kernel(f"{_ROOT}/proc")
    dev = f"{_ROOT}/dev"
    libc.mount("tmpfs", dev, "tmpfs", libc.MS_NOSUID, "mode=0755,size=64k")
    for name, fd in devices:
        os.close(os.open(f"{dev}/{name}", os.O_CREAT | os.O_CLOEXEC, 0o666))
        libc.mount(f"/proc/self/fd/{fd}", f"{dev}/{name}", flags=libc.MS_BIND)
        os.close(fd)
    for target, link in _LINKS:
        os.symlink(target, f"{dev}/{link}")
    for name in ("pts", "shm"):
        os.mkdir(f"{dev}/{name}")
    terminals = "newinstance,ptmxmode=0666,mode=0620"
    libc.mount("devpts", f"{dev}/pts", "devpts", libc.MS_NOSUID | libc.MS_NOEXEC, terminals)
    libc.mount("tmpfs", f"{dev}/shm", "tmpfs", _NO_SETID_DEVICES, f"mode=1777,size={storage_mb}m")


def _directory(path: str) -> None:
    """Create a directory that programs of an image rely on. The image can have something else there, such as a link."""
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
        os.unlink(path)
    if not os.path.isdir(path):
        os.mkdir(path)
        os.chmod(path, 0o1777 if path.endswith("/tmp") else 0o755)


def _name_machine(name: str) -> None:
    libc.set_hostname(name)
    libc.loopback_up()
    _directory(f"{_ROOT}/etc")
    for path, text in (("hosts", _HOSTS.format(name=name)), ("hostname", f"{name}\n")):
        target = f"{_ROOT}/etc/{path}"
        if os.path.lexists(target):
            os.unlink(target)  # it may be a link, which would lead out of the box
        with open(target, "x") as file:
            file.write(text)
