"""The site as it is built: without a warning, with links that lead somewhere, and as a browser shows it.

``tests/unit/test_site.py`` holds what can be said of its Markdown.
"""

from __future__ import annotations

import posixpath
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.lab.pages import ROOT
from website import tree

pytestmark = pytest.mark.slow
SITE = ROOT / "build" / "site"
# What a page loads by itself, by tag and attribute.
LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src")}


def nox(session: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nox", "--session", session]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def built() -> Path:
    finished = nox("site")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return SITE


class Page(HTMLParser):
    """What a page loads, where its links lead, and which places it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: set[str] = set()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        self.loads |= {given[name] for name in given if (tag, name) in LOADS}
        if tag == "link" and given.get("rel") != "canonical":
            self.loads.add(given["href"])
        if tag == "a" and "href" in given:
            self.links.add(given["href"])


def is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


@cache
def read(path: Path) -> Page:
    return Page(path)


def test_every_page_is_built(built: Path) -> None:
    for language, folder in (("en", built), ("zh", built / "zh-CN")):
        missing = [a for a in tree.titles(language) if not (folder / a).with_suffix(".html").exists()]
        assert not missing


def test_nothing_is_loaded_from_another_host(built: Path) -> None:
    for path in built.rglob("*.html"):
        page = read(path)
        assert len(page.loads) > 3
        assert not [
            each for each in page.loads if urlsplit(each).netloc or urlsplit(each).scheme not in ("", "data")
        ]
    for path in built.rglob("*.css"):
        assert "url(http" not in path.read_text("utf-8").replace('"', ""), path


def test_links_lead_to_a_page_and_a_place_in_it(built: Path) -> None:
    for path in built.rglob("*.html"):
        if path.name == "404.html":  # its links are from the root, wherever that will be
            continue
        for link in read(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path.parent / unquote(parts.path) if parts.path else path
            target = Path(posixpath.normpath(target))
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.relative_to(built)} links to {link}"
            place = unquote(parts.fragment)
            assert not place or place in read(target).places, f"{path.relative_to(built)} links to {link}"


def test_in_a_browser(built: Path) -> None:
    finished = nox("browse")
    if "nobody looked at the site" in finished.stdout:
        pytest.skip("there is no Chromium here: nobody looked at the site (apt-get install -y chromium)")
    assert finished.returncode == 0, finished.stdout + finished.stderr
