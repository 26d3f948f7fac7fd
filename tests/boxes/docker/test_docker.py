"""Features of boxes of a docker engine that others lack, and their removal."""

import asyncio
import contextlib
import logging
import random
import subprocess
import sys
import tarfile
import time
from dataclasses import replace

import pytest

from agentloop import boxes
from agentloop.boxes import BoxLostError, Image
from agentloop.errors import UserError
from agentloop.process.owned_folders import own_label
from tests.boxes.processes import running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.docker]

OWNER = """
import asyncio, sys
from pathlib import Path
from agentloop import boxes
from agentloop.process.owned_folders import own_label

async def main():
    provider = boxes.create("docker")
    await provider.open()
    print(own_label(), flush=True)
    spec = boxes.BoxSpec(image=boxes.Image(tree=Path(sys.argv[1])))
    while True:
        box = await provider.start(spec)
        await box.exec("sleep 58151 & setsid sleep 58152 & true")
        print("running", flush=True)
        copy = await box.fork()
        await box.stop()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def provider_name():
    return "docker"


def docker(*arguments):
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


def of(owner):
    """Return the containers, and the images of copies, that a process has made."""
    chosen = ("--all", "--quiet", "--filter", "label=agentloop.box", "--filter", f"label=agentloop.owner={owner}")
    return docker("ps", *chosen).split(), docker("images", *chosen).split()


async def test_the_image_of_a_copy_goes_with_it(box):
    copy = await box.fork()
    assert len((await asyncio.to_thread(of, own_label()))[1]) == 1
    await copy.stop()
    assert (await asyncio.to_thread(of, own_label()))[1] == []


async def test_a_restarted_container_is_another_box(box):
    with contextlib.suppress(subprocess.CalledProcessError):  # the engine may have removed it already
        await asyncio.to_thread(docker, "restart", "--time", "0", box.generation)
    with pytest.raises(BoxLostError, match=f"The box {box.id} has ended"):
        await box.exec("true")


async def test_a_killed_container_is_lost_with_its_commands(box):
    running_command = asyncio.ensure_future(box.exec("sleep 58141"))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(docker, "kill", box.generation)
    with pytest.raises(BoxLostError, match="has ended, and its files are lost"):
        await running_command


async def test_a_program_that_survives_a_kill_is_reported(box):
    """A shell that the agent replaced kills nothing, which the engine sees from outside."""
    await box.exec("sleep 58142 &")
    await box.exec(
        "cp /bin/sh /bin/shell; printf '#!/bin/shell\\nexit 0\\n' > /bin/fake; chmod +x /bin/fake; mv /bin/fake /bin/sh"
    )
    with pytest.raises(boxes.BoxError, match="cannot be killed: sleep 58142"):
        await box.kill_processes()


async def test_storage_that_cannot_be_limited_is_reported(provider, spec, caplog):
    with caplog.at_level(logging.WARNING):
        box = await provider.start(replace(spec, storage_mb=100))
    await box.stop()
    info = await asyncio.to_thread(docker, "info")
    assert ("100 MB are not enforced" in caplog.text) == ("Backing Filesystem: xfs" not in info)


async def test_an_image_is_built_from_a_dockerfile(provider, spec, tree, tmp_path):
    with tarfile.open(tmp_path / "base.tar", "w") as archive:
        archive.add(tree, ".")
    (tmp_path / "Dockerfile").write_text(
        "FROM scratch\nADD base.tar /\nENV COLOR=blue\nWORKDIR /srv\nCOPY note .\nUSER worker\n"
    )
    (tmp_path / "note").write_text("built\n")
    box = await provider.start(replace(spec, image=Image(dockerfile=tmp_path)))
    assert (await box.exec("pwd; cat note; echo $COLOR; id -un")).stdout == "/srv\nbuilt\nblue\nworker\n"
    await box.stop()


async def test_an_unavailable_image_is_one_clear_error(provider, tmp_path):
    with pytest.raises(UserError, match="The image of a box is unavailable"):
        await provider.prepare(Image(reference="localhost:1/no/such:image"))
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY missing /\n")
    with pytest.raises(UserError, match=r"The image of a box is unavailable: .*missing"):
        await provider.prepare(Image(dockerfile=tmp_path))


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_left_of_a_killed_owner(tree, seed):
    """At a random moment the owner is killed. The engine ends its boxes; another provider removes what it made late."""
    owner = await asyncio.to_thread(_run_and_kill, tree, random.Random(seed).random())
    provider = boxes.create("docker", sweep_seconds=0.5)
    await provider.open()
    deadline = time.monotonic() + 60
    while any(found := await asyncio.to_thread(of, owner)) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await provider.close()
    assert found == ([], [])
    assert running("sleep 5815") == []


def _run_and_kill(tree, seconds):
    process = subprocess.Popen([sys.executable, "-c", OWNER, tree], stdout=subprocess.PIPE, text=True)
    owner = process.stdout.readline().strip()
    assert process.stdout.readline() == "running\n"
    assert any(of(owner))
    time.sleep(seconds)
    process.kill()
    process.communicate()
    return owner
