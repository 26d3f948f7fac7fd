"""The daemon as a process: start, refusal, drain and end."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from agentloop.cli import main
from agentloop.errors import UserError
from agentloop.tools.serving.state.settings import Settings

pytestmark = pytest.mark.slow

SERVE = ("serve", "--port", "0", "--isolation", "slots", "--slots", "2")
COMMAND = (sys.executable, "-m", "agentloop.tools", *SERVE)


class Process:
    """A daemon process; `url` is the address that it printed."""

    def __init__(self, folder: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.popen = subprocess.Popen(
                [*COMMAND, *options], stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **(env or {})}
            )
        assert self.popen.stdout is not None
        lines = []
        while not lines or "token" not in lines[-1]:
            line = self.popen.stdout.readline()
            assert line, self.log.read_text()
            lines.append(line)
        self.banner = "".join(lines)
        self.url = lines[0].split()[-1]

    def post(self, path: str, body: dict, **options) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, trust_env=False, **options)

    def descendants(self) -> set[int]:
        """Return all descendants, also those in sandboxes."""
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        found = {self.popen.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {self.popen.pid}

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()


@pytest.fixture
def start(tmp_path):
    started = []

    def make(*options: str, **more) -> Process:
        started.append(Process(tmp_path, *options, **more))
        return started[-1]

    yield make
    for process in started:
        process.close()


def gone(pids: set[int]) -> bool:
    def ended(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    return all(map(ended, pids))


def wait_for(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def slow_request(process: Process, code: str) -> socket.socket:
    """Post a request without waiting for the answer."""
    host, port = process.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    body = f'{{"code": "{code}", "run_timeout": 60}}'
    connection.sendall(
        f"POST /run_code HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
    )
    wait_for(lambda: httpx.get(f"{process.url}/v1/health", trust_env=False).json()["busy"] == 1)
    return connection


def answer(connection: socket.socket) -> bytes:
    received = b""
    with connection, contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            received += data
    return received


def test_start_banner_reports_the_settings(start):
    process = start("--preload", "json,decimal", "--memory-mb", "300", env={"AGENTLOOP_TOKEN": "t-1"})
    assert "http://127.0.0.1:" in process.banner
    assert "isolation  slots: " in process.banner
    assert "2 at once, 300 MiB each" in process.banner
    assert "json, decimal" in process.banner
    assert "token      required" in process.banner
    assert "t-1" not in process.banner
    assert process.post("/run_code", {"code": "print(1)"}).status_code == 401
    answered = process.post("/run_code", {"code": "print(1)"}, headers={"authorization": "Bearer t-1"})
    assert answered.json()["run_result"]["stdout"] == "1\n"
    wait_for(lambda: '"route": "/run_code", "status": 200' in process.log.read_text())


def test_sigterm_lets_running_requests_finish(start):
    process = start()
    connection = slow_request(process, "import time; time.sleep(1.5); print('whole')")
    descendants = process.descendants()
    process.popen.send_signal(signal.SIGTERM)
    assert b"whole" in answer(connection)
    assert process.popen.wait(20) == 0
    wait_for(lambda: gone(descendants))
    with pytest.raises(httpx.ConnectError):
        process.post("/run_code", {"code": "1"})


def test_drain_timeout_ends_running_requests(start):
    process = start("--drain-seconds", "1")
    connection = slow_request(process, "import time; time.sleep(60)")
    descendants = process.descendants()
    process.popen.send_signal(signal.SIGTERM)
    assert b"503" in answer(connection)
    assert process.popen.wait(20) == 0
    wait_for(lambda: gone(descendants))


def test_second_sigterm_ends_immediately(start):
    process = start()
    connection = slow_request(process, "import time; time.sleep(60)")
    descendants = process.descendants()
    process.popen.send_signal(signal.SIGTERM)
    wait_for(lambda: "draining" in process.log.read_text())
    process.popen.send_signal(signal.SIGTERM)
    assert b" 503 " in answer(connection)
    assert process.popen.wait(10) == 0
    wait_for(lambda: gone(descendants))


def test_an_end_of_the_daemon_is_no_result_of_cells(start):
    process = start()
    session = process.post("/v1/sessions", {}).json()["id"]
    code = "import time; time.sleep(60)"
    with ThreadPoolExecutor() as threads:
        notebook = threads.submit(process.post, "/run_jupyter", {"cells": [code], "total_timeout": 60})
        cell = threads.submit(process.post, f"/v1/sessions/{session}/run", {"code": code, "max_seconds": 60})
        wait_for(lambda: httpx.get(f"{process.url}/v1/health", trust_env=False).json()["sessions"] == 2)
        wait_for(lambda: httpx.get(f"{process.url}/v1/sessions/{session}", trust_env=False).json()["in_use"])
        time.sleep(0.5)  # the cells have begun
        process.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: "draining" in process.log.read_text())
        process.popen.send_signal(signal.SIGTERM)
        assert [each.result().status_code for each in (notebook, cell)] == [503, 503]
    assert process.popen.wait(10) == 0


def test_sigkill_leaves_no_process(start):
    process = start()
    session = process.post("/v1/sessions", {}).json()["id"]
    process.post(f"/v1/sessions/{session}/run", {"code": "import subprocess; subprocess.Popen(['sleep', '100'])"})
    connection = slow_request(process, "import os, time; os.fork(); os.setsid(); time.sleep(60)")
    descendants = process.descendants()
    assert len(descendants) >= 4
    process.popen.kill()
    wait_for(lambda: gone(descendants))
    connection.close()


def test_unusable_level_suggests_a_working_one(tmp_path):
    (tmp_path / "docker.sock").write_text("")
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
    command = [*COMMAND, "--isolation", "docker"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    says = " ".join(done.stderr.split())
    assert "'docker'" in says
    assert "--isolation slots works" in says


def test_auto_reports_the_selected_level(start):
    process = start("--isolation", "auto")
    assert "isolation  slots: " in process.banner


def test_start_logs_nothing_by_default(start):
    process = start("--isolation", "auto")
    assert process.post("/run_code", {"code": "print(1)"}).status_code == 200
    wait_for(lambda: process.log.read_text())
    lines = process.log.read_text().splitlines()
    assert [json.loads(line)["route"] for line in lines] == ["/run_code"]


@pytest.fixture
def refused(capsys):
    """Run the command in this process, which must exit with 2, and return what it says."""

    def run(*options: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["tools", *SERVE, *options])
        assert ended.value.code == 2
        return " ".join(capsys.readouterr().err.split())

    return run


def test_non_loopback_addresses_need_a_token(refused):
    assert "set a token with AGENTLOOP_TOKEN" in refused("--host", "0.0.0.0")


def test_occupied_port_raises(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "Cannot listen on 127.0.0.1" in refused("--port", str(taken.getsockname()[1]))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--isolation", "slotz"), "Did you mean 'slots'?"),
        (("--slots", "0"), "--slots must be at least 1"),
        (("--level-option", "colour=red"), "colour"),
        (("--level-option", "max_processes=many"), "The option 'max_processes' of the sandbox level 'slots' is 'many'"),
        (("--level-option", "packages=numpy"), "is 'numpy'"),
        (("--memory-mb", "5"), "at least 16"),
        (("--preload", "nump"), "'nump' of preload cannot be imported"),
        (("--packages", "no-such-thing-1"), "no-such-thing-1"),
        (("--tool", "nowhere:thing"), "nowhere"),
        (("--tool", "search={'a'}"), "not a JSON object"),
        (("--tool", 'search={"source": 1'), "not a JSON object"),
        (("--tool", "search=index.sqlite"), "not a JSON object: write --tool 'search={"),
        (("--max-boxes", "0"), "max_boxes must be a finite number above 0"),
        (("--max-image-mb", "-1"), "max_image_mb must be a finite number above 0"),
        (("--tool", "nosuch"), "Set --tool to one of: code_interpreter, image_zoom_in_tool, "),
        (("--box-option", "folder=/tmp"), "need --boxes"),
        (("--box-network", "public"), "need --boxes"),
        (("--tool", 'search={"source": "nowhere.db"}'), "nowhere.db is not a search index"),
        (("--tool", 'search={"colour": 1}'), "Options it takes: source"),
        (("--log-level", "loud"), "--log-level"),
        (("--host", "host.invalid", "--token", "x"), "Cannot listen on host.invalid"),
    ],
)
def test_invalid_arguments_exit_with_an_error(options, says, refused):
    assert says in refused(*options)


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"host": "example.org"},
        {"token": ""},
        {"token": "a b"},
        {"token": "é"},
        {"port": 70000},
        {"memory_mb": 0},
        {"memory_mb": 20_000},
        {"max_seconds": float("nan")},
        {"drain_seconds": -1},
    ],
)
def test_invalid_settings_raise(wrong):
    with pytest.raises(UserError):
        Settings(**wrong)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_loopback_needs_no_token(host):
    assert Settings(host=host).token is None
