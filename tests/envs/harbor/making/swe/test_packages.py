"""Source distributions: what is unpacked of them, which files are package and tests, and what the tests need."""

import tarfile
import zipfile

import pytest

from agentloop.envs.harbor.making.swe.packages.fetching import fetch
from agentloop.envs.harbor.making.swe.packages.layout import Layout, is_test, layout_of
from agentloop.envs.harbor.making.swe.packages.requirements import requirements_of
from agentloop.errors import UserError
from tests.envs.harbor.making.swe.conftest import FILES, write

INFO = "Metadata-Version: 2.1\nName: Two-Words\nVersion: 3.0\n"
TEST = "def test_a(): pass\n"
LAYOUTS = [
    ("src", {"src/a/__init__.py": "", "tests/test_a.py": TEST}, Layout("src", ("src/a",), ("tests",))),
    ("module", {"a.py": "", "setup.py": "", "test_a.py": TEST}, Layout(".", ("a.py",), ("test_a.py",))),
    ("own name", {"a/__init__.py": "", "b/__init__.py": "", "test/test_a.py": TEST}, Layout(".", ("a",), ("test",))),
    (
        "names of setuptools",
        {"b/__init__.py": "", "c.py": "", "d.py": "", "x.egg-info/top_level.txt": "b\nc\n", "tests/test_b.py": TEST},
        Layout(".", ("b", "c.py"), ("tests",)),
    ),
    ("inside", {"a/__init__.py": "", "a/tests/test_a.py": TEST}, Layout(".", ("a",), ("a/tests",))),
    ("beside", {"a/__init__.py": "", "a/b_test.py": TEST}, Layout(".", ("a",), ("a",))),
    (
        "both",
        {"a/__init__.py": "", "a/tests/test_a.py": "", "tests/b_test.py": ""},
        Layout(".", ("a",), ("tests", "a/tests")),
    ),
]


@pytest.mark.parametrize(("files", "layout"), [each[1:] for each in LAYOUTS], ids=[each[0] for each in LAYOUTS])
def test_package_and_tests_are_found(tmp_path, files, layout):
    assert layout_of(write(tmp_path, files), "a") == layout


def test_tests_are_no_sources(tmp_path):
    files = dict.fromkeys(
        ["a/__init__.py", "a/b/c.py", "a/tests/d.py", "a/test_e.py", "a/conftest.py", "a/latest.py"], ""
    )
    found = layout_of(write(tmp_path, files), "a").sources(tmp_path)
    assert found == ["a/__init__.py", "a/b/c.py", "a/latest.py"]
    assert is_test("testing/data/x.ini")
    assert not is_test("contest/a.py")


@pytest.mark.parametrize("form", ["tar.gz", "zip", "folder"])
def test_archives_and_folders_are_unpacked_alike(tmp_path, form):
    folder = write(tmp_path / "Two-Words-3.0", {**FILES, "PKG-INFO": INFO})
    (folder / "link.py").symlink_to("src/shapes/area.py")
    package = folder
    if form == "tar.gz":
        package = tmp_path / "p.tar.gz"
        with tarfile.open(package, "w:gz") as archive:
            archive.add(folder, folder.name)
    elif form == "zip":
        package = tmp_path / "p.zip"
        with zipfile.ZipFile(package, "w") as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(tmp_path))
    found = fetch(str(package), tmp_path / "out")
    assert (found.name, found.version) == ("Two-Words", "3.0")
    names = {str(path.relative_to(found.folder)) for path in found.folder.rglob("*") if path.is_file()}
    left_out = ("setup.sh", ".git/HEAD", "build/lib/shapes/area.py", "src/shapes/__pycache__/area.cpython-311.pyc")
    assert names == {*FILES, "link.py", "PKG-INFO", "src/Two_Words-3.0.dist-info/METADATA"} - set(left_out)
    assert not (found.folder / "link.py").is_symlink()
    assert found.digest == fetch(str(folder), tmp_path / "again").digest


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.tar.gz").write_text("x")
    with pytest.raises(UserError, match="cannot be unpacked as a source distribution"):
        fetch(str(tmp_path / "a.tar.gz"), tmp_path / "out")


METADATA = (
    INFO
    + "Requires-Dist: one>=1\nRequires-Dist: old; python_version < '3.12'\n"
    + "Requires-Dist: win; sys_platform == 'win32'\n"
    + "Provides-Extra: test\nRequires-Dist: two; extra == 'test'\nRequires-Dist: pytest-cov; extra == 'test'\n"
    + "Provides-Extra: docs\nRequires-Dist: three; extra == 'docs'\n"
)
PROJECT = """
[project]
name = "a"
dependencies = ["one", "a[test]"]
[project.optional-dependencies]
dev = ["two", "ruff"]
[dependency-groups]
tests = ["three", {include-group = "more"}]
more = ["four", "types-x"]
dev = ["five"]
"""
REQUIREMENTS = [
    ("metadata", {"PKG-INFO": METADATA}, ["old", "one>=1", "two"]),
    ("pyproject.toml", {"pyproject.toml": PROJECT}, ["four", "one", "three", "two"]),
    (
        "setuptools",
        {"a.egg-info/requires.txt": "one\n\n[test]\ntwo\n\n[:python_version<'3']\nx\n[d]\ny\n"},
        ["one", "two"],
    ),
    (
        "files",
        {
            "requirements/testing.txt": "one==1 # why\n-r two.txt\n# three\ngit+https://x.org/y\n",
            "test-requirements.txt": "four\n",
        },
        ["four", "one==1"],
    ),
]


@pytest.mark.parametrize(
    ("files", "wanted"), [each[1:] for each in REQUIREMENTS], ids=[each[0] for each in REQUIREMENTS]
)
def test_requirements_of_tests_are_found(tmp_path, files, wanted):
    write(tmp_path / "a", {"a/__init__.py": "", "tests/test_a.py": TEST, **files})
    assert requirements_of(fetch(str(tmp_path / "a"), tmp_path / "out"), "3.11") == wanted
