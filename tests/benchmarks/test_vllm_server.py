"""The server of a benchmark ends with it, also by SIGTERM; one that cannot start is reported."""

import os
import signal
import subprocess
import sys

import pytest

from benchmarks.vllm_server import vllm_server

pytestmark = pytest.mark.slow

SERVER = """
import os, sys, http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""
BENCHMARK = """
import psutil, sys, threading
from pathlib import Path
from benchmarks.vllm_server import vllm_server
with vllm_server("m", {}, Path(sys.argv[1]), program=(sys.executable, "-c", sys.argv[2])):
    print(*[child.pid for child in psutil.Process().children()], flush=True)
    threading.Event().wait()
"""


def test_the_server_ends_with_a_benchmark_that_sigterm_ends(tmp_path):
    command = [sys.executable, "-c", BENCHMARK, str(tmp_path / "log"), SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as benchmark:
        server = int(benchmark.stdout.readline())
        benchmark.send_signal(signal.SIGTERM)
        assert benchmark.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_a_server_that_ends_at_its_start_is_an_error(tmp_path):
    program = (sys.executable, "-c", "print('no such model'); raise SystemExit(3)")
    with (
        pytest.raises(RuntimeError, match=r"ended with exit status 3 before it answered") as error,
        vllm_server("m", {}, tmp_path / "log", program=program),
    ):
        pass
    assert (tmp_path / "log").read_text() == "no such model\n"
    assert str(error.value).endswith(f"Its log {tmp_path / 'log'} ends with:\nno such model\n")
