"""/run_code with real slots: what clients of SandboxFusion rely on."""

import asyncio
import base64

import pytest

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

KEYS = {"status", "message", "compile_result", "run_result", "executor_pod_name", "files"}


async def test_documented_example_succeeds(daemon):
    body = await daemon.run("print(1)")
    assert body.keys() >= KEYS
    assert [body[key] for key in ("status", "message", "compile_result", "files")] == ["Success", "", None, {}]
    process = body["run_result"]
    assert process.items() >= {"status": "Finished", "return_code": 0, "stdout": "1\n", "stderr": ""}.items()
    assert 0 < process["execution_time"] < 5


async def test_verl_request_succeeds(daemon):
    body = await daemon.run(
        "print(input())",
        compile_timeout=10,
        run_timeout=10,
        stdin="hello",
        memory_limit_MB=1024,
        language="python",
        files={},
        fetch_files=[],
    )
    assert body["run_result"]["stdout"] == "hello\n"


@pytest.mark.parametrize("stdin", [None, ""])
async def test_missing_stdin_is_empty(daemon, stdin):
    body = await daemon.run("input()", stdin=stdin)
    assert body["status"] == "Failed"
    assert "EOFError" in body["run_result"]["stderr"]
    assert body["run_result"]["stdout"] == ""


async def test_timeout_keeps_printed_output(daemon):
    body = await daemon.run("import time; print('partial'); time.sleep(60)", run_timeout=0.5)
    process = body["run_result"]
    assert (body["status"], process["status"], process["return_code"]) == ("Failed", "TimeLimitExceeded", None)
    assert process["stdout"] == "partial\n"
    assert 0.4 < process["execution_time"] < 10


async def test_exception_is_a_failure(daemon):
    body = await daemon.run("assert 1 == 2")
    process = body["run_result"]
    assert (body["status"], process["status"], process["return_code"]) == ("Failed", "Finished", 1)
    assert process["stderr"].startswith("Traceback")
    assert process["stderr"].endswith("AssertionError\n")


async def test_signal_is_reported_as_failure(daemon):
    body = await daemon.run("import os; os.kill(os.getpid(), 9)")
    process = body["run_result"]
    assert (body["status"], process["status"], process["return_code"]) == ("Failed", "Finished", 137)
    assert (process["signal"], process["oom"]) == (9, False)


async def test_out_of_memory_is_reported_as_failure(daemon):
    body = await daemon.run("x = bytearray(1 << 30)", memory_limit_MB=100)
    process = body["run_result"]
    assert (body["status"], process["status"], process["oom"]) == ("Failed", "Finished", True)


async def test_numpy_works_with_1024_mb(daemon):
    body = await daemon.run("import numpy; print(numpy.ones((500, 500)).dot(numpy.ones(500))[0])", memory_limit_MB=1024)
    assert body["run_result"]["stdout"] == "500.0\n"


async def test_bash_code_runs(daemon):
    assert (await daemon.run("echo $((6 * 7))", language="bash"))["run_result"]["stdout"] == "42\n"


async def test_files_are_uploaded_and_fetched(daemon):
    content = bytes(range(256))
    body = await daemon.run(
        "data = open('in/a.bin', 'rb').read(); open('/mnt/b', 'wb').write(data[::-1])",
        files={"in/a.bin": base64.b64encode(content).decode(), "skipped": None, "IGNORE_THIS_FILE": "%"},
        fetch_files=["/mnt/b", "missing"],
    )
    assert {path: base64.b64decode(text) for path, text in body["files"].items()} == {"/mnt/b": content[::-1]}


async def test_host_files_cannot_be_fetched(daemon):
    body = await daemon.run(
        "print(1)", fetch_files=["/etc/shadow", "../../etc/shadow", "/proc/self/environ", "/dev/zero"]
    )
    assert "/etc/shadow" not in body["files"]
    assert not any(b"root:" in base64.b64decode(text) for text in body["files"].values())


async def test_lone_surrogates_and_nul_round_trip(daemon):
    body = await daemon.post("/run_code", content=b'{"code": "print(1)  # \\ud800"}')
    assert body.status_code == 200
    assert body.json()["status"] in ("Success", "Failed")
    assert (await daemon.run("print('\0')"))["status"] == "Failed"


async def test_binary_output_is_replaced(daemon):
    body = await daemon.run(r"import sys; sys.stdout.buffer.write(b'\xff\xfe\x00\x1b[31m\r\n')")
    assert body["run_result"]["stdout"] == "\ufffd\ufffd\0\x1b[31m\r\n"


async def test_long_output_is_truncated_and_flagged(daemon):
    body = await daemon.run("print('x' * 3_000_000)")
    assert body["status"] == "Success"
    assert body["run_result"]["truncated"]
    assert len(body["run_result"]["stdout"]) == 1 << 20


async def test_binary_stdin_is_passed(daemon):
    body = await daemon.run("import sys; print(sys.stdin.buffer.read())", stdin_base64="/wA=")
    assert body["run_result"]["stdout"] == "b'\\xff\\x00'\n"


async def test_echo_shows_the_last_expression(daemon):
    assert (await daemon.run("6 * 7", echo=True))["run_result"]["stdout"] == "42\n"


async def test_hundred_requests_on_four_slots_do_not_time_out(daemon):
    code = "import time; time.sleep(0.05); print('done')"
    bodies = await asyncio.gather(*(daemon.run(code, run_timeout=5, compile_timeout=60) for _ in range(100)))
    assert {body["run_result"]["stdout"] for body in bodies} == {"done\n"}
    assert max(body["queue_seconds"] for body in bodies) > 0.5
    assert max(body["run_result"]["execution_time"] for body in bodies) < 5


async def test_disconnected_client_ends_its_execution(daemon, until):
    sandbox = daemon.daemon.sandbox
    body = {"code": "import time; time.sleep(60)", "run_timeout": 60}
    _, writer = await daemon.send_only("POST", "/run_code", body)
    await until(lambda: sandbox.load().busy == 1)
    writer.close()
    await until(lambda: sandbox.load().busy == 0)
    assert (await daemon.run())["status"] == "Success"
