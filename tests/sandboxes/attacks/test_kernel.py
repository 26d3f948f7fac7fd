"""Code that attacks the kernel: its settings, its calls, its devices, privileges to be had back."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


async def test_kernel_settings_are_not_writable(box):
    code = """
import glob, os
# The last one is the own pid namespace's.
own = {"/proc/sys/kernel/ns_last_pid"}
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/hostname",
             "/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/modprobe", "/proc/self/oom_score_adj",
             *glob.glob("/proc/sys/vm/*"), *glob.glob("/proc/sys/kernel/*"), *glob.glob("/proc/irq/*/*")):
    try:
        if os.path.isfile(path) and path not in own:
            fd = os.open(path, os.O_WRONLY)
            if path.endswith("oom_score_adj"):
                os.write(fd, b"-1000")
            print(path)
    except OSError:
        pass
"""
    result = await box.run(code)
    assert (result.stdout, result.stderr) == ("", "")


@pytest.mark.claim("/proc")
async def test_code_has_and_gains_no_privileges(box):
    code = """
import os
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
print(os.getresuid(), os.getresgid(), os.getgroups())
print([int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")])
print(status["NoNewPrivs"], status["Seccomp"])
for call in (os.setuid, os.setgid):
    try:
        call(0)
        print("root")
    except OSError:
        pass
"""
    result = await box.run(code)
    uids, *rest = result.stdout.splitlines()
    assert uids in ("(1000, 1000, 1000) (1000, 1000, 1000) []", "(1000, 1000, 1000) (1000, 1000, 1000) [1000]")
    assert rest == ["[0, 0, 0, 0, 0]", "1 2"]


@pytest.mark.claim("nosuid")
async def test_setuid_programs_cannot_change_the_user(box):
    code = """
import os
for path in ("/", "/usr", "/tmp", "/dev/shm"):
    if not os.statvfs(path).f_flag & os.ST_NOSUID:
        print("set-user-id works in", path)
"""
    assert (await box.run(code)).stdout == ""


def host_status(pid: int) -> dict[str, str]:
    return dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())


@asynccontextmanager
async def sleeping(box, marker: str) -> AsyncIterator[list[int]]:
    """The pids on the host of code that sleeps."""
    task = asyncio.create_task(box.run(f"import os; os.execv('/bin/sleep', ['{marker}', '1000'])", timeout=900))
    try:
        async with asyncio.timeout(20):
            while not (found := list(box.processes(marker))):  # noqa: ASYNC110 - nothing tells when it runs
                await asyncio.sleep(0.05)
        yield found
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_code_is_not_root_on_the_host(box):
    async with sleeping(box, "whoami_2231") as pids:
        for pid in pids:
            status = host_status(pid)
            assert "0" not in status["Uid"].split() + status["Gid"].split() + status["Groups"].split()
            assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [0] * 4
            assert status["NoNewPrivs"] == "1"


@pytest.mark.claim("user namespace")
async def test_root_inside_is_not_root_outside(box):
    async with sleeping(box, "whose_7105") as pids:
        assert all(os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user") for pid in pids)


SYSCALLS = """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(name, x86, arm, *arguments):
    number = x86 if platform.machine() == "x86_64" else arm
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    print(name, "allowed" if result >= 0 else errno.errorcode[ctypes.get_errno()])
"""
CALLS = [
    ("unshare", 272, 97, (0x10000000,), "EPERM"),
    ("unshare_net", 272, 97, (0x40000000,), "EPERM"),
    ("clone_newuser", 56, 220, (0x10000000 | 17, 0, 0, 0, 0), "EPERM"),
    ("clone_newpid", 56, 220, (0x20000000 | 17, 0, 0, 0, 0), "EPERM"),
    ("clone3", 435, 435, (0, 0), "ENOSYS"),
    ("mount", 165, 40, (0, 0, 0, 0, 0), "EPERM"),
    ("umount2", 166, 39, (0, 0), "EPERM"),
    ("pivot_root", 155, 41, (0, 0), "EPERM"),
    ("chroot", 161, 51, (0,), "EPERM"),
    ("fsopen", 430, 430, (0, 0), "EPERM"),
    ("open_tree", 428, 428, (0, 0, 0), "EPERM"),
    ("setns", 308, 268, (0, 0), "EPERM"),
    ("ptrace", 101, 117, (0, 0, 0, 0), "EPERM"),
    ("process_vm_readv", 310, 270, (1, 0, 0, 0, 0, 0), "EPERM"),
    ("pidfd_getfd", 438, 438, (0, 0, 0), "EPERM"),
    ("bpf", 321, 280, (0, 0, 0), "EPERM"),
    ("io_uring_setup", 425, 425, (1, 0), "EPERM"),
    ("userfaultfd", 323, 282, (0,), "EPERM"),
    ("keyctl", 250, 219, (0, 0, 0, 0, 0), "EPERM"),
    ("add_key", 248, 217, (0, 0, 0, 0, 0), "EPERM"),
    ("perf_event_open", 298, 241, (0, 0, 0, 0, 0), "EPERM"),
    ("kexec_load", 246, 104, (0, 0, 0, 0), "EPERM"),
    ("init_module", 175, 105, (0, 0, 0), "EPERM"),
    ("reboot", 169, 142, (0, 0, 0, 0), "EPERM"),
    ("open_by_handle_at", 304, 265, (0, 0, 0), "EPERM"),
    ("personality", 135, 92, (0x0040000,), "EPERM"),
    ("getpid", 39, 172, (), "allowed"),
]


async def test_dangerous_system_calls_are_blocked(box):
    calls = "\n".join(f"call({name!r}, {x86}, {arm}, *{arguments})" for name, x86, arm, arguments, _ in CALLS)
    result = await box.run(f"{SYSCALLS}\n{calls}")
    assert result.stdout.splitlines() == [f"{name} {answer}" for name, _, _, _, answer in CALLS]


async def test_system_calls_of_other_architectures_are_blocked(box):
    """The numbers of the x32 ABI name the same calls."""
    result = await box.run(f"{SYSCALLS}\ncall('x32', 0x40000000 | 272, 0x40000000 | 97, 0x10000000)")
    assert result.stdout == "x32 ENOSYS\n"


async def test_device_nodes_cannot_be_made(box):
    result = await box.run("import os, stat; os.mknod('/tmp/disk', 0o600 | stat.S_IFBLK, os.makedev(254, 0))")
    assert "PermissionError" in result.stderr


async def test_devices_are_harmless(box):
    result = await box.run("import os; print(*sorted(os.listdir('/dev')))")
    harmless = {"fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero"}
    # bwrap brings the last three; docker, too.
    assert set(result.stdout.split()) <= harmless | {"ptmx", "pts", "mqueue", "console", "core", "tty"}


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_NETLINK", "AF_PACKET", "AF_ALG"])
async def test_unneeded_socket_families_are_blocked(box, family):
    result = await box.run(f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW)")
    assert "Address family not supported by protocol" in result.stderr or "PermissionError" in result.stderr


async def test_raw_sockets_are_blocked(box):
    result = await box.run("import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)")
    assert "PermissionError" in result.stderr


async def test_threads_and_children_still_work(box):
    code = """
import subprocess, threading, socket
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(subprocess.run(["echo", "child"], capture_output=True, text=True).stdout, end="")
a, b = socket.socketpair(); a.send(b"pair"); print(b.recv(4).decode())
"""
    assert (await box.run(code)).stdout == "thread\nchild\npair\n"
