"""Both languages say the same things: every failure, every patch, and links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Entry
from vlmpatch.catalog.read import read

CHECKOUT = Path(__file__).resolve().parents[2]
ENTRIES = read(default_path()).entries.values()
PAGES = sorted([*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/*.md")])


@pytest.mark.parametrize("page", ["docs/failures.md", "docs/failures.zh-CN.md"])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_each_patch_is_named_under_each_failure_page(page: str, entry: Entry) -> None:
    text = (CHECKOUT / page).read_text()
    assert f"`{entry.id}`" in text
    for failure in entry.failures:
        assert re.search(rf"^## {failure} · ", text, re.MULTILINE), f"{page} has no section {failure}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_page_for_users_is_there_in_both_languages(page: Path) -> None:
    if page.name not in ("CHANGELOG.md", "CONTRIBUTING.md"):
        stem = page.name.removesuffix(".md").removesuffix(".zh-CN")
        assert (page.parent / f"{stem}.md").exists()
        assert (page.parent / f"{stem}.zh-CN.md").exists()


@pytest.mark.parametrize("page", ["docs/doctor.md", "docs/doctor.zh-CN.md"])
def test_each_finding_has_its_line(page: str) -> None:
    said = "".join(path.read_text() for path in (CHECKOUT / "vlmpatch" / "tools").rglob("*.py"))
    codes = set(re.findall(r'"([DL]\d\d)"', said))
    assert codes == set(re.findall(r"^\| ([DL]\d\d) \|", (CHECKOUT / page).read_text(), re.MULTILINE))
