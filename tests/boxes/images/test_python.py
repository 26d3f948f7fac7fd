"""The images `builtin:python`: they have a whole Python, in every provider, and the packages that they name."""

from dataclasses import replace

import pytest

from agentloop.boxes import Image
from agentloop.boxes.images.python import PythonImage
from agentloop.boxes.images.store import ImageStore
from agentloop.errors import UserError

LOOK = "import ctypes, sqlite3, ssl, sys, zlib; print(*sys.path, sys.prefix)"


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_box_has_the_python_that_runs_agentloop(provider, spec):
    box = await provider.start(replace(spec, image=Image(reference="builtin:python")))
    try:
        result = await box.exec(["python3", "-c", LOOK])
        assert result.stderr == ""
        assert {path.split("/")[1] for path in result.stdout.split()} == {"usr"}
        script = "printf '#!/usr/bin/env python\\nprint(6 * 7)' > /srv/x; chmod +x /srv/x; /srv/x"
        assert (await box.exec(script)).stdout == "42\n"
    finally:
        await box.stop()


@pytest.mark.slow
@pytest.mark.ecosystem
@pytest.mark.asyncio(loop_scope="module")
async def test_packages_of_the_index_are_in_it(provider, spec, tmp_path):
    reference = "builtin:python[iniconfig==2.1.0,packaging==25.0,pluggy==1.6.0,pygments==2.19.2,pytest==9.0.1]"
    box = await provider.start(replace(spec, image=Image(reference=reference)))
    try:
        assert (await box.exec("pytest --version")).stdout == "pytest 9.0.1\n"
    finally:
        await box.stop()
    missing = Image(reference="builtin:python[pytest==0.0.0.1]")
    with pytest.raises(UserError, match=r"cannot be made(.|\n)*pytest==0\.0\.0\.1"):
        ImageStore(tmp_path).get(missing)


def test_references_say_what_is_wrong_with_them():
    assert PythonImage.parse("builtin:python3.12[b==2, a==1.0+x]") == PythonImage(
        "builtin:python3.12[b==2, a==1.0+x]", "3.12", ("a==1.0+x", "b==2")
    )
    for reference, says in [
        ("builtin:pythn", "does not exist: use builtin:busybox"),
        ("builtin:python3.12[a>=1]", "has 'a>=1': write packages as NAME==VERSION"),
        ("builtin:python[--index-url=x]", "write packages as NAME==VERSION"),
    ]:
        with pytest.raises(UserError, match=says):
            ImageStore().get(Image(reference=reference))
    with pytest.raises(UserError, match=r"needs Python 3\.99, which this machine does not have"):
        ImageStore().get(Image(reference="builtin:python3.99"))
