"""/v1/boxes over plain HTTP: quotas, leases, networks, and what a daemon refuses."""

import hashlib
import io
import tarfile

import pytest

from tests.boxes.conftest import tree
from tests.boxes.network.test_network import own_address
from tests.boxes.processes import boxes_of_this_process
from tests.tools.serving.conftest import ByHand, serving, until

__all__ = ["tree"]

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

BUSYBOX = {"reference": "builtin:busybox", "memory_mb": 128, "storage_mb": 16}


def serving_boxes(**settings):
    return serving(ByHand(), boxes="rootfs", **settings)


async def opened(client, **more):
    answer = await client.post("/v1/boxes", json=BUSYBOX | more)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


async def test_a_daemon_without_a_provider_serves_no_boxes():
    async with serving(ByHand()) as client:
        answer = await client.post("/v1/boxes", json=BUSYBOX)
        assert (answer.status_code, "--boxes rootfs" in answer.json()["detail"]) == (501, True)
        assert (await client.post("/v1/boxes/renew", json={"ids": []})).status_code == 501
        assert (await client.put("/v1/boxes/images/0", content=b"")).status_code == 501


async def test_boxes_are_counted_listed_and_ended():
    async with serving_boxes(max_boxes=2) as client:
        first, second = await opened(client), await opened(client)
        full = await client.post("/v1/boxes", json=BUSYBOX)
        assert (full.status_code, "--max-boxes" in full.json()["detail"]) == (429, True)
        assert (await client.post(f"/v1/boxes/{first}/fork", json={})).status_code == 429
        listed = (await client.get("/v1/boxes")).json()["boxes"]
        assert {each["id"] for each in listed} == {first, second}
        assert (await client.delete(f"/v1/boxes/{first}")).status_code == 200
        assert (await client.delete(f"/v1/boxes/{first}")).status_code == 200
        gone = await client.post(f"/v1/boxes/{first}/exec", json={"command": "true"})
        assert (gone.status_code, "has ended" in gone.json()["detail"]) == (410, True)
        assert boxes_of_this_process() == 1
    assert boxes_of_this_process() == 0


async def test_a_box_ends_when_nobody_renews_its_lease():
    async with serving_boxes() as client:
        kept, left = await opened(client, idle_seconds=60), await opened(client, idle_seconds=0.2)
        await until(lambda: boxes_of_this_process() == 1)
        assert (await client.post("/v1/boxes/renew", json={"ids": [kept, left]})).json() == {"lost": [left]}


async def test_every_request_needs_the_token():
    async with serving_boxes(token="a-long-token-of-this-test") as client:
        assert (await client.post("/v1/boxes", json=BUSYBOX)).status_code == 401
        client.headers["authorization"] = "Bearer a-long-token-of-this-test"
        await opened(client)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"memory_mb": 1 << 20}, "--max-memory-mb"),
        ({"network": "public"}, "--box-network public"),
        ({"network": "allowlist", "hosts": ["example.org"]}, "--box-network public"),
        ({"network": "none", "hosts": ["example.org"]}, "Only the network allowlist takes hosts"),
        ({"reference": None}, "Set either reference or archive"),
        ({"archive": "0" * 64}, "Set either reference or archive"),
        ({"processes": 0}, "greater than 0"),
        ({"idle_seconds": 0}, "greater than 0"),
        ({"cpus": -1}, "greater than 0"),
        ({"cpus": 1e9}, "set at most 65536"),
        ({"env": {"A=B": "c"}}, "The variable 'A=B' of a box cannot be set"),
        ({"reference": "builtin:nothing"}, "builtin:nothing"),
    ],
)
async def test_what_a_box_may_not_have_is_refused(change, text):
    async with serving_boxes() as client:
        answer = await client.post("/v1/boxes", json=BUSYBOX | change)
        assert (answer.status_code, text in answer.text) == (422, True), answer.text
        assert boxes_of_this_process() == 0


async def test_ports_lead_nowhere_without_a_network_and_never_to_the_daemon():
    async with serving_boxes() as client:
        path = f"/v1/boxes/{await opened(client)}/forward"
        closed = await client.post(path, json={"port": 80, "host": "192.0.2.1", "host_port": 80})
        assert (closed.status_code, "--box-network public" in closed.text) == (422, True)
    async with serving_boxes(box_network="public") as client:
        path = f"/v1/boxes/{await opened(client)}/forward"
        for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::ffff:127.0.0.1", "2130706433", own_address()):
            own = await client.post(path, json={"port": 80, "host": host, "host_port": 80})
            assert (own.status_code, "no box may reach" in own.text) == (422, True), own.text
        unknown = await client.post(path, json={"port": 80, "host": "no.example", "host_port": 80})
        assert (unknown.status_code, "does not know the host 'no.example'" in unknown.text) == (422, True)


async def test_an_image_is_kept_by_its_content(tree):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(tree, ".")
    content = stream.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    async with serving_boxes(max_image_mb=1 + (len(content) >> 20)) as client:
        unknown = await client.post("/v1/boxes", json={"archive": digest})
        assert (unknown.status_code, f"PUT /v1/boxes/images/{digest}" in unknown.text) == (412, True)
        wrong = await client.put(f"/v1/boxes/images/{'0' * 64}", content=content)
        assert (wrong.status_code, digest in wrong.text) == (422, True)
        assert (await client.get(f"/v1/boxes/images/{digest}")).status_code == 404
        assert (await client.put(f"/v1/boxes/images/{digest}", content=content)).status_code == 200
        assert (await client.get(f"/v1/boxes/images/{digest}")).status_code == 200
        await opened(client, reference=None, archive=digest)
        large = await client.put(f"/v1/boxes/images/{'1' * 64}", content=content)
        assert (large.status_code, "--max-image-mb" in large.text) == (413, True)
        assert (await client.get("/v1/boxes/images/..%2f..%2fetc%2fpasswd")).status_code == 404


async def test_a_copy_that_is_not_possible_is_the_fault_of_the_request():
    async with serving_boxes() as client:
        files = f"/v1/boxes/{await opened(client)}/files"
        missing = await client.get(files, params={"path": "/nowhere"})
        assert (missing.status_code, "/nowhere" in missing.json()["detail"]) == (400, True)
        assert (await client.get(files, params={"path": "/bin", "max_bytes": -1})).status_code == 422
        broken = await client.put(files, params={"folder": "/tmp"}, content=b"not a tar")
        assert (broken.status_code, "/tmp" in broken.json()["detail"]) == (400, True)
        assert (await client.get("/v1/boxes/x/files", params={"path": "/bin"})).status_code == 410


async def test_a_client_that_leaves_ends_its_command():
    async with serving_boxes() as client:
        id = await opened(client)
        _, writer = await client.send_only("POST", f"/v1/boxes/{id}/exec", {"command": "sleep 8811; touch /late"})
        ps = {"command": "ps"}
        while b"8811" not in (await client.post(f"/v1/boxes/{id}/exec", json=ps)).content:
            pass
        writer.close()
        while b"8811" in (await client.post(f"/v1/boxes/{id}/exec", json=ps)).content:
            pass
        assert b"late" not in (await client.post(f"/v1/boxes/{id}/exec", json={"command": "ls /"})).content
