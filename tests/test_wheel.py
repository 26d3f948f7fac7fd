"""What `pip install agentloop` brings: some folders are installed inside others, and data are named by their suffix."""

import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parent.parent
_PREFIXES = {"agentloop": "agentloop"} | {
    name: f"agentloop/{name}" for name in ("boxes", "envs", "recipes", "sandboxes", "tools", "trainer")
}

_OF_A_BUILD = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


def test_the_image_of_the_daemon_gets_all_that_the_wheel_is_built_from():
    lines = (_ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == {*_PREFIXES, *_OF_A_BUILD}


def test_the_wheel_has_every_file_of_the_sources(tmp_path):
    listed = subprocess.run(
        ["git", "ls-files", *_PREFIXES], cwd=_ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    # A copy, for the build leaves folders behind in its source.
    for name in [*listed, *_OF_A_BUILD]:
        copy = tmp_path / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((_ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(tmp_path / "source")], check=True, timeout=300)
    (wheel,) = tmp_path.glob("agentloop-*.whl")
    expected = {name.replace(folder := name.split("/")[0], _PREFIXES[folder], 1) for name in listed}
    assert expected
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert packed == expected
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = message_from_bytes(archive.read(metadata))
    check_page_of_the_index(about)


def check_page_of_the_index(about: Message) -> None:
    """The page says what the README says first, has no link into the repository, and can be found."""
    page = str(about.get_payload(decode=True), "utf-8").strip()
    opening = (_ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")[:3]
    assert page.split("\n\n")[:3] == opening
    assert [link for link in re.findall(r"\]\(([^)]*)\)", page) if not link.startswith("https://")] == []
    assert about["Description-Content-Type"] == "text/markdown"
    assert about["Keywords"]
    assert "Typing :: Typed" in about.get_all("Classifier")
