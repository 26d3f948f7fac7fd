"""The structure of the package: no circles of imports, small rooms, and a sentence about each."""

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("sandboxes", "boxes", "tools", "envs", "agentloop", "trainer")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MOST_FILES = 15
GRAPH = """
import json, grimp
graph = grimp.build_graph("agentloop", exclude_type_checking_imports=False, cache_dir=None)
print(json.dumps({module: sorted(graph.find_modules_directly_imported_by(module)) for module in graph.modules}))
"""


def _is_docstring_only(path: Path) -> bool:
    return path.name == "__init__.py" and len(ast.parse(path.read_text(encoding="utf-8")).body) <= 1


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    names = parts if parts[0] == "agentloop" else ("agentloop", *parts)
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


@pytest.fixture(scope="module")
def imports() -> dict[str, list[str]]:
    """The modules that each module imports, type-only and lazy imports included; the tree is laid out as imported."""
    subprocess.run([ROOT / "scripts" / "source-tree"], check=True)
    tree = ROOT / "build" / "tree"
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", GRAPH]
    found = subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True, text=True).stdout
    graph: dict[str, list[str]] = json.loads(found)
    assert len(graph) > 400
    return graph


@pytest.mark.slow
def test_no_file_imports_itself_through_others(imports):
    order = list(TopologicalSorter(imports).static_order())  # raises CycleError with the circle
    assert len(order) == len(imports)


@pytest.mark.slow
def test_no_folder_imports_itself_through_others(imports):
    folder_of = {_module(path): str(path.parent.relative_to(ROOT)) for path in FILES}
    arrows: dict[str, set[str]] = {folder: set() for folder in folder_of.values()}
    for module, targets in imports.items():
        if module in folder_of and module != "agentloop":  # the public names come from everywhere
            arrows[folder_of[module]] |= {folder_of[target] for target in targets if target in folder_of}
    for folder, below in arrows.items():
        below.discard(folder)
    order = list(TopologicalSorter(arrows).static_order())  # raises CycleError with the circle
    assert len(order) == len(arrows)


def test_no_folder_has_too_many_files():
    counts = Counter(path.parent for path in FILES if not _is_docstring_only(path))
    assert {str(folder.relative_to(ROOT)): n for folder, n in counts.items() if n > MOST_FILES} == {}


def test_every_folder_has_a_sentence_about_it():
    folders = {path.parent for path in FILES}
    assert len(folders) > 50
    silent = [
        str(folder.relative_to(ROOT))
        for folder in sorted(folders)
        if not (folder / "__init__.py").is_file()
        or not ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_no_file_is_longer_than_500_lines():
    assert [path.name for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) > 500] == []


def test_configs_change_through_validation_only():
    assert [str(path) for path in FILES if "model_copy(" in path.read_text(encoding="utf-8")] == []
