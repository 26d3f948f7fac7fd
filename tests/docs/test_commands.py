"""Every agentloop command of the pages parses: its name, its options, and the config keys that it sets."""

import re
import shlex
from pathlib import Path

import pytest

from agentloop.cli.config import keys
from tests.support.reference_pages import commands

ROOT = Path(__file__).parents[2]
HISTORY = {"changelog.md", "design.md", "roadmap.md", "config.md"}  # old commands, and descriptions in their lines
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "recipes").rglob("*.md"))]
    if page.name not in HISTORY
]
COMMANDS = dict(commands())
KEYS = {key.name: key for key in keys()}
_SPAN = re.compile(r"`(agentloop [a-z][^`]*)`")
_LINE = re.compile(r"^(?:    |\$ )(agentloop [^\n]*)$", re.MULTILINE)
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TAKES_KEYS = ("train", "rollout", "plan")


def commands_of(page: Path) -> list[str]:
    text = re.sub(r" *\\\n +", " ", page.read_text(encoding="utf-8"))
    shell = [line for block in _SHELL.findall(text) for line in block.splitlines()]
    found = [*shell, *_LINE.findall(text), *_SPAN.findall(" ".join(text.split()))]
    return [each for each in found if each.startswith("agentloop ") and not re.search(r"\.\.\.|\||\[--|[<>]", each)]


def arguments_of(command: str) -> tuple[str, list[str]]:
    words = shlex.split(command, comments=True)[1:]
    name = next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in COMMANDS), "")
    return name, words[len(name.split()) :]


def is_known(key: str) -> bool:
    """Whether a key, or one above it that takes any keys, is in the configuration."""
    parts = key.split(".")
    above = (KEYS.get(".".join(parts[:n])) for n in range(1, len(parts)))
    return key in KEYS or any(found is not None and not found.is_section for found in above)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_parse(page):
    for command in commands_of(page):
        name, words = arguments_of(command)
        assert name or command.split()[1] in {known.split()[0] for known in COMMANDS} | {"--version"}, command
        if not name or len(words) < sum(each.required for each in COMMANDS[name].params):
            continue  # a command in a sentence, without its arguments
        parsed = COMMANDS[name].make_context(name, list(words), resilient_parsing="--help" in words).params
        overrides = parsed.get("overrides") or () if name in _TAKES_KEYS else ()
        assert [key for key, is_set, _ in (o.partition("=") for o in overrides) if is_set and not is_known(key)] == []


def test_the_pages_have_commands():
    assert sum(len(commands_of(page)) for page in PAGES) > 100
