"""What packages register is looked up once, and again where the path has changed."""

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import pytest

from agentloop.errors import UserError
from agentloop.registry import named_objects as loading
from tests.support.installed import install


def test_names_are_found_sorted_and_nothing_is_imported(tmp_path, monkeypatch):
    install(tmp_path, "agentloop.examples", walk="json:loads", run="json:loads")
    monkeypatch.syspath_prepend(tmp_path)
    found = loading.registered("agentloop.examples")
    assert list(found) == ["run", "walk"]
    assert found["run"].value == "json:loads"


def test_the_packages_are_read_once(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)  # a path that nobody has looked at
    reads = []
    monkeypatch.setattr(
        loading, "entry_points", lambda **kwargs: reads.append(kwargs) or metadata.entry_points(**kwargs)
    )
    assert "code_interpreter" in loading.registered("agentloop.tools")
    assert "code_interpreter" in loading.registered("agentloop.tools")
    assert reads == [{"group": "agentloop.tools"}]


def test_a_path_that_was_added_is_read(tmp_path, monkeypatch):
    assert loading.registered("agentloop.examples") == {}
    install(tmp_path, "agentloop.examples", jump="json:loads")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(loading.registered("agentloop.examples")) == ["jump"]


def test_a_module_or_file_that_fails_to_import_says_where(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("import json\njson.loads('{')\n")
    (tmp_path / "no_python.py").write_text("def (\n")
    monkeypatch.syspath_prepend(tmp_path)
    for spec in ("broken_module:name", f"{tmp_path}/broken_module.py:name"):
        with pytest.raises(UserError, match=r"fails to import: JSONDecodeError: .* \(broken_module.py, line 2\)"):
            loading.load_object(spec, "tool")
    with pytest.raises(UserError, match=r"fails to import: SyntaxError: .* \(no_python.py, line 1\)\.$"):
        loading.load_object(f"{tmp_path}/no_python.py:name", "tool")


def test_a_missing_package_of_an_extra_is_named_with_its_command(tmp_path, monkeypatch):
    (tmp_path / "own_game.py").write_text("import gymnasium\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UserError, match=r"not installed\. Run: pip install 'agentloop\[gym\]'"):
        loading.load_object("own_game:Game", "environment")


def test_threads_that_load_a_file_at_once_get_it_whole(tmp_path):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(0.2)\nanswer = 42\n")
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda _: loading.load_object(f"{tmp_path}/slow.py:answer", "tool"), range(4))
        assert list(found) == [42] * 4


def test_a_file_that_changed_since_it_was_loaded_is_named_once(tmp_path, caplog):
    file = tmp_path / "mine.py"
    file.write_text("def reward(): return 1\n")
    assert loading.load_object(f"{file}:reward", "reward")() == 1
    assert not caplog.text
    file.write_text("def reward(): return 22\n")
    for _ in range(2):
        assert loading.load_object(f"{file}:reward", "reward")() == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"{file} has changed since this process loaded it, and the old code is still used. Restart the process, or the "
        "notebook's kernel, to use the new code."
    ]
