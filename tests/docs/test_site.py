"""The site builds without a warning, loads nothing from a network, and has no broken link."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PICTURES = {".png", ".svg"}
_LINK = re.compile(r"\]\(([^)#\s]+)")
_FILE = re.compile(
    r"`(?:python )?((?:agentloop|benchmarks|deploy|docs|recipes|sandboxes|scripts|tests|trainer)/[\w./-]+)[ `]"
)


class Page(HTMLParser):
    """The anchors of a page, its links, and the files that a browser loads with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon"):
            self.loaded.append(values["href"])
        elif "src" in values:
            self.loaded.append(values["src"])


@pytest.fixture(scope="module")
def site() -> dict[Path, Page]:
    subprocess.run([ROOT / "scripts" / "source-tree", "build/docs-tree"], check=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return {path: Page(path) for path in (ROOT / "build" / "site").rglob("*.html") if path.name != "404.html"}


@pytest.mark.slow
def test_every_page_is_in_the_site_and_in_its_navigation(site):
    root = ROOT / "build" / "site"
    written = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert {path.relative_to(root) for path in site} == written
    listed = {(root / link).resolve() for link in site[root / "index.html"].links}
    assert set(site) - listed == set()


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_an_anchor(site):
    broken = []
    for path, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in site[target].anchors):
                broken.append((path.name, link))
    assert broken == []


@pytest.mark.slow
def test_pages_load_only_files_of_the_site(site):
    loaded = {(path, name) for path, page in site.items() for name in page.loaded}
    assert len(loaded) > len(site)
    assert [(path.name, name) for path, name in loaded if not (path.parent / urlsplit(name).path).is_file()] == []


def test_links_of_other_readmes_lead_to_files():
    pages = [ROOT / "README.md", *(ROOT / "recipes").rglob("README.md")]
    links = [(page, link) for page in pages for link in _LINK.findall(page.read_text()) if not urlsplit(link).scheme]
    assert len(links) > 10
    assert [(str(page), link) for page, link in links if not (page.parent / link).exists()] == []


def test_folders_are_small_and_every_picture_is_shown():
    folders = [Path(folder) for folder, _, files in os.walk(DOCS) if len(files) > 15]
    assert folders == []
    text = "".join(page.read_text() for page in [*DOCS.rglob("*.md"), ROOT / "README.md"])
    unused = [path.name for path in DOCS.rglob("*") if path.suffix in PICTURES and f"/{path.name})" not in text]
    assert unused == []


def test_files_that_pages_name_exist():
    pages = [page for page in [*DOCS.rglob("*.md"), ROOT / "README.md"] if page.name != "changelog.md"]
    named = {(page.name, path) for page in pages for path in _FILE.findall(page.read_text())}
    assert len(named) > 50
    assert [(page, path) for page, path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_pictures_of_concepts_are_those_of_the_script(tmp_path):
    subprocess.run([sys.executable, ROOT / "scripts" / "draw-concepts", tmp_path], check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in (DOCS / "pictures").glob("*.svg")}


def test_every_page_of_concepts_begins_with_a_picture():
    concepts = list((DOCS / "concepts").iterdir())
    assert [page.name for page in concepts if "\n![" not in page.read_text().partition("\n## ")[0]] == []
