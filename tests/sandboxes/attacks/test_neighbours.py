"""Executions side by side and one after the other share nothing."""

import asyncio

import pytest

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest.mark.claim("own /tmp, /mnt and /dev/shm")
async def test_files_and_sockets_of_neighbours_are_unreachable(box):
    code = """
import os, socket, time
open("/tmp/mine", "x").write("A"); open("/dev/shm/mine", "x").write("B"); open("left", "x"); open("/mnt/mine", "x")
server = socket.create_server(("127.0.0.1", 4567))
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0name")
time.sleep(0.5)
print(sorted(os.listdir("/tmp")), os.listdir("/dev/shm"), sorted(os.listdir()), os.listdir("/mnt"))
"""
    results = await asyncio.gather(box.run(code), box.run(code))
    assert [result.stderr for result in results] == ["", ""]
    assert {result.stdout for result in results} == {"['mine', 'work'] ['mine'] ['left', 'main.py'] ['mine']\n"}


async def test_shared_memory_and_queues_of_neighbours_are_unreachable(box):
    code = """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
def make_and_find(flags):
    queue = libc.mq_open(b"/mine", 0o102 if flags else 0o2, 0o600, 0)
    return [libc.msgget(77, flags), libc.semget(77, 1, flags), libc.shmget(77, 4096, flags), queue]
"""
    make = code + "make_and_find(0o1600); time.sleep(0.8)"
    find = code + "time.sleep(0.4); print([number >= 0 for number in make_and_find(0)])"
    _, found = await asyncio.gather(box.run(make), box.run(find))
    assert found.stdout == "[False, False, False, False]\n"
    assert (await box.run(find)).stdout == "[False, False, False, False]\n"


@pytest.mark.claim("packages")
@pytest.mark.claim("own /tmp, /mnt and /dev/shm")
async def test_next_execution_finds_no_leftovers(box):
    leave = """
import builtins, json, locale, os, random, resource, signal, socket, sys, threading
import numpy
for path in ("/tmp/left", "/mnt/left", "/dev/shm/left", "left"):
    open(path, "w").write("left")
for path in ("/tmp/work", "/tmp", "/mnt", "/dev/shm"):
    try:
        os.chmod(path, 0)
    except PermissionError:
        pass
os.environ["LEFT"] = "1"; os.putenv("LEFT2", "1"); os.umask(0o777); os.nice(5)
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGALRM])
sys.modules["left"] = sys; builtins.left = 1; json.left = 1; sys.path.insert(0, "/left"); sys.setrecursionlimit(50_000)
sys.setswitchinterval(1); sys.argv.append("left"); os.chdir("/"); random.seed(1); numpy.random.seed(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0left"); abstract.listen()
server = socket.create_server(("127.0.0.1", 4568))
client = socket.create_connection(("127.0.0.1", 4568)); server.accept()[0].close(); client.close()
"""
    look = """
import builtins, json, os, random, resource, signal, socket, sys
print([os.listdir(path) for path in ("/tmp", "/tmp/work", "/mnt", "/dev/shm")], os.getcwd(), sys.argv)
print([oct(os.stat(path).st_mode & 0o7777) for path in ("/tmp", "/mnt", "/dev/shm")], os.access(".", os.W_OK))
print([name for name in os.environ if "LEFT" in name], oct(os.umask(0o22)), os.nice(0))
print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGCHLD), signal.pthread_sigmask(signal.SIG_BLOCK, []))
print("left" in sys.modules, hasattr(builtins, "left"), hasattr(json, "left"), "/left" in sys.path)
print(sys.getrecursionlimit(), sys.getswitchinterval(), resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64)
socket.create_server(("127.0.0.1", 4568), reuse_port=False).close()
socket.socket(socket.AF_UNIX).bind("\\0left")
"""
    expected = (await box.run(look)).stdout
    assert expected.splitlines()[0] == "[['work'], ['main.py'], [], []] /tmp/work ['main.py']"
    for _ in range(8):  # more often than there are slots
        left = await box.run(leave)
        assert left.stderr == ""
        result = await box.run(look)
        assert (result.stdout, result.stderr) == (expected, "")


async def test_random_numbers_differ_between_executions(box):
    code = """
import random, uuid, os, secrets
import numpy
print(random.random(), uuid.uuid4(), secrets.token_hex(4))
print(numpy.random.rand(), numpy.random.default_rng().random())
"""
    results = [await box.run(code) for _ in range(6)]
    results += await asyncio.gather(*[box.run(code) for _ in range(6)])
    for column in zip(*(result.stdout.split() for result in results), strict=True):
        assert len(set(column)) == len(results)


async def test_memory_contains_no_data_of_earlier_executions(box):
    """A warm interpreter has read neither the code nor the input of those before, so it cannot leave them in a fork."""
    halves = ("needle_of_the_exe", "cution_before_4410")
    needle = "".join(halves)
    for _ in range(4):
        await box.run(f"x = {needle!r}; print(input())", stdin=needle, files={"f": needle.encode()})
    code = f"""
import ctypes, os, select
libc = ctypes.CDLL(None, use_errno=True)
reader, writer = os.pipe()
needle = {halves[0]!r}.encode() + {halves[1]!r}.encode()[:1]
found, pages = 0, 0
for start in {{id(thing) >> 26 << 26 for thing in (object, object(), [], "text", os, libc, bytes(100_000))}}:
    for page in range(start - (32 << 20), start + (96 << 20), 4096):
        if libc.write(writer, ctypes.c_void_p(page), ctypes.c_size_t(4096)) == 4096:  # EFAULT where nothing is mapped
            pages += 1
            content = os.read(reader, 4096)
            at = content.find(needle)
            if at >= 0 and content[at:at + len({needle!r})].endswith({halves[1]!r}.encode()[-6:]):
                found += 1
print(pages > 100, found)
"""
    # Its own source holds the halves, never the whole.
    code = code.replace(f"len({needle!r})", str(len(needle)))
    result = await box.run(code, timeout=60.0)
    assert (result.stdout, result.stderr) == ("True 0\n", "")
