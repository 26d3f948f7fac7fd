"""The file system of a slot: a read-only view of the host, created once, and writable parts that are renewed."""

from __future__ import annotations

import os

from agentloop.sandboxes.inside.isolation import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_ROOT = "/tmp"
"""Directory in which the view is built, in a separate mount namespace. Any directory would do."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS = (("fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr"))
_PROC_FLAGS = libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC
_KERNEL_SETTINGS = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_KERNEL_SECRETS = ("cmdline", "keys", "kcore", "kallsyms", "timer_list", "config.gz")
_WITHOUT_COUNTERS = ("arp", "if_inet6", "route", "tcp", "tcp6", "udp", "udp6", "unix")
"""Files in /proc/net that only show present sockets and addresses."""

NETWORK_SETTINGS = {
    "net.ipv4.tcp_max_tw_buckets": "0",  # the next execution can reuse an address at once
    # All sockets of the machine share the TCP memory.
    "net.ipv4.tcp_rmem": "4096 16384 65536",
    "net.ipv4.tcp_wmem": "4096 16384 65536",
    # Do not keep metrics of past connections.
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_fastopen": "0",
}
"""Settings of the network namespace of a sandbox."""


def build_root(plan: dict[str, Any], writable: Sequence[str]) -> None:
    """Enter the view that `plan` (`RootFS.as_dict`) describes. Needs CAP_SYS_ADMIN and a separate mount namespace.

    `writable` are mount points for later. Raises `OSError`.
    """
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    # Open all sources first, because some may be below the directory that is covered next.
    sources = [(os.open(path, os.O_PATH | os.O_CLOEXEC), shown) for path, shown in plan["binds"]]
    sources += [(os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC), f"/dev/{name}") for name in _DEVICES]
    proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    libc.mount("tmpfs", _ROOT, "tmpfs", libc.MS_NOSUID, "mode=0755,size=1m")
    os.mkdir(f"{_ROOT}/proc")
    # Linux lets a user namespace mount procfs only if one is visible already; the procfs of each slot covers this one.
    libc.mount(f"/proc/self/fd/{proc}", f"{_ROOT}/proc", flags=libc.MS_BIND | libc.MS_REC)
    os.close(proc)
    for handle, shown in sources:
        _show(handle, _ROOT + shown, device=shown.startswith("/dev/"))
        os.close(handle)
    for target, link in [*plan["links"], *((f"/proc/self/{target}", f"/dev/{name}") for target, name in _DEVICE_LINKS)]:
        os.makedirs(os.path.dirname(_ROOT + link), exist_ok=True)
        os.symlink(target, _ROOT + link)
    for path, content in plan["texts"]:
        os.makedirs(os.path.dirname(_ROOT + path), exist_ok=True)
        with open(_ROOT + path, "w") as file:
            file.write(content)
    for path in writable:
        os.makedirs(_ROOT + path, exist_ok=True)
    libc.pivot_root(_ROOT)
    libc.mount("none", "/", flags=libc.MS_REMOUNT | libc.MS_BIND | libc.MS_RDONLY | libc.MS_NOSUID)


def _show(handle: int, target: str, *, device: bool) -> None:
    if os.path.isdir(f"/proc/self/fd/{handle}"):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC))
    libc.mount(f"/proc/self/fd/{handle}", target, flags=libc.MS_BIND | libc.MS_REC)
    if not device:
        libc.read_only(target)


def mount_proc() -> int:
    """Mount the procfs of the pid namespace, without processes of other users and information about the host.

    Return a descriptor of the file that sets the number of the next process; -1 if this kernel has none.
    """
    libc.mount("proc", "/proc", "proc", _PROC_FLAGS, "hidepid=2")
    for name, value in NETWORK_SETTINGS.items():
        with open(f"/proc/sys/{name.replace('.', '/')}", "w") as file:
            file.write(value)
    try:
        last_pid = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        last_pid = -1
    hide_kernel("/proc")
    return last_pid


def hide_kernel(proc: str) -> None:
    """Make the kernel's settings in a procfs read-only, and hide its information about the host."""
    for name in _KERNEL_SETTINGS:
        if os.path.exists(path := f"{proc}/{name}"):
            libc.mount(path, path, flags=libc.MS_BIND | libc.MS_REC)
            libc.mount("none", path, flags=libc.MS_REMOUNT | libc.MS_BIND | libc.MS_RDONLY | _PROC_FLAGS)
    for name in _KERNEL_SECRETS:
        if os.path.exists(path := f"{proc}/{name}"):
            libc.mount("/dev/null", path, flags=libc.MS_BIND)


def hide_counters() -> None:
    """Hide files of /proc/net from other users, because their counters live as long as the slot. Raises `OSError`."""
    for name in os.listdir("/proc/net"):
        if name not in _WITHOUT_COUNTERS:
            os.chmod(f"/proc/net/{name}", 0o400)


class Scratch:
    """The writable directories: one tmpfs each, limited in bytes and in files.

    `is_owner`: whether this process has another user than the code, which can then leave only files in them.
    """

    def __init__(self, directories: Sequence[str], megabytes: int, key: int, *, is_owner: bool) -> None:
        self._key = key
        self._directories = directories
        self._options = f"mode=1777,size={megabytes}m,nr_inodes=65536"
        self._is_owner = is_owner
        self._is_mounted = False

    def renew(self) -> None:
        """Replace used directories by empty ones. Raises `OSError` if an old one is still in use.

        An unused directory still has the modification time that was set here, which only its owner can set. Even an
        empty directory is replaced if it was used, because the inode numbers of its next files would reveal how many
        there were.
        """
        for path in self._directories:
            if self._is_mounted:
                if self._is_owner and os.stat(path).st_mtime_ns == 0:
                    continue
                libc.umount(path, key=self._key)
            libc.mount("tmpfs", path, "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, self._options, key=self._key)
            os.utime(path, (0, 0))
        self._is_mounted = True
