"""/v1/sessions with real sessions."""

import asyncio
import base64

import pytest

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


async def opened(daemon, **fields) -> str:
    response = await daemon.post("/v1/sessions", json=fields)
    assert response.status_code == 200, response.text
    return f"/v1/sessions/{response.json()['id']}"


async def run(daemon, path, code, **fields) -> dict:
    response = await daemon.post(f"{path}/run", json={"code": code, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def test_session_lifecycle(daemon):
    path = await opened(daemon, files={"a.txt": base64.b64encode(b"hello").decode()})
    assert (await run(daemon, path, "x = open('a.txt').read(); print(x)"))["stdout"] == "hello\n"
    assert (await run(daemon, path, "x.upper()"))["displays"] == [{"text/plain": "'HELLO'"}]
    error = (await run(daemon, path, "1/0"))["error"]
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    for method in ("PUT", "POST"):
        files = {"b.bin": base64.b64encode(method.encode()).decode()}
        assert (await daemon.request(method, f"{path}/files", json={"files": files})).status_code == 200
        assert (await run(daemon, path, "print(open('b.bin').read())"))["stdout"] == f"{method}\n"
    read = await daemon.post(f"{path}/files/read", json={"paths": ["b.bin", "/etc/shadow", "missing"]})
    assert read.json()["files"].get("b.bin") == base64.b64encode(b"POST").decode()
    assert set(read.json()["files"]) == {"b.bin"}
    about = (await daemon.get(path)).json()
    assert about["idle_limit"] == 1800
    assert about["id"] in [one["id"] for one in (await daemon.get("/v1/sessions")).json()["sessions"]]
    assert (await daemon.delete(path)).status_code == 200
    gone = await daemon.post(f"{path}/run", json={"code": "1"})
    assert gone.status_code == 404
    assert "POST /v1/sessions" in gone.json()["detail"]
    assert (await daemon.delete(path)).status_code == 404


async def test_session_ids_are_unguessable(daemon):
    paths = [await opened(daemon) for _ in range(2)]
    assert paths[0] != paths[1]
    assert min(len(path.rpartition("/")[2]) for path in paths) >= 22
    for path in paths:
        await daemon.delete(path)


async def test_timeout_and_interrupt_end_the_cell_but_not_the_session(daemon):
    path = await opened(daemon)
    body = await run(daemon, path, "x = 1\nwhile True: pass", max_seconds=0.3)
    assert body["timed_out"]
    cell = asyncio.create_task(run(daemon, path, "x = 2\nwhile True: pass", max_seconds=60))
    while not cell.done():
        await asyncio.sleep(0.2)
        assert (await daemon.post(f"{path}/interrupt", json={})).status_code == 200
    assert (await cell)["error"]["name"] == "KeyboardInterrupt"
    assert (await run(daemon, path, "print(x)"))["stdout"] == "2\n"
    await daemon.delete(path)


async def test_disconnected_client_interrupts_its_cell_but_not_the_session(daemon, until):
    path = await opened(daemon)
    body = {"code": "y = 5\nwhile True: pass", "max_seconds": 60}
    _, writer = await daemon.send_only("POST", f"{path}/run", body)
    (lease,) = (lease for lease in daemon.daemon.sessions if lease.id in path)
    await until(lambda: lease.users == 1)
    await asyncio.sleep(0.3)
    writer.close()
    await until(lambda: lease.users == 0)
    assert (await run(daemon, path, "print(y)"))["stdout"] == "5\n"
    await daemon.delete(path)


async def test_session_ended_by_its_code_is_gone(daemon):
    path = await opened(daemon)
    assert (await run(daemon, path, "import os; os._exit(1)"))["session_ended"] == "exited"
    assert (await daemon.get(path)).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "", {"memory_mb": 0}, "memory_mb"),
        ("POST", "", {"idle_seconds": -1}, "idle_seconds"),
        ("POST", "", {"idle_seconds": 10**9}, "idle_seconds"),
        ("POST", "", {"files": {"/root/x": ""}}, "files"),
        ("POST", "/run", {}, "code"),
        ("POST", "/run", {"code": "1", "max_seconds": 0}, "max_seconds"),
        ("POST", "/run", {"code": "1", "max_seconds": True}, "max_seconds"),
        ("PUT", "/files", {"files": {"../a": ""}}, "files"),
        ("PUT", "/files", {}, "files"),
        ("POST", "/files/read", {"paths": "a"}, "paths"),
        ("POST", "/files/read", {"paths": ["a"], "limit": -1}, "limit"),
    ],
)
async def test_invalid_field_is_named(daemon, method, path, body, field):
    base = await opened(daemon) if path else "/v1/sessions"
    response = await daemon.request(method, base + path, json=body)
    assert response.status_code == 422, response.text
    assert response.json()["detail"][0]["loc"] == ["body", field]
    if path:
        await daemon.delete(base)
