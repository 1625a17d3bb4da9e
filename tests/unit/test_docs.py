"""Both languages say the same things, links lead somewhere, and each of doctor's codes is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vlmpatch.catalog.location import default_path
from vlmpatch.tools import cli, codes
from vlmpatch.tools.explain import failures

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"
PAGES = sorted([*CHECKOUT.glob("*.md"), *DOCS.rglob("*.md")])
NAMES = [str(page.relative_to(CHECKOUT)) for page in PAGES]
EXAMPLES = [str(page.relative_to(CHECKOUT)) for page in sorted((CHECKOUT / "examples").rglob("*.md"))]
CODES = codes.read()


def twin(page: Path) -> Path:
    """The same page in the other language."""
    if page.parent == CHECKOUT:
        stem = page.name.removesuffix(".md").removesuffix(".zh-CN")
        return CHECKOUT / (f"{stem}.md" if page.name.endswith(".zh-CN.md") else f"{stem}.zh-CN.md")
    within = page.relative_to(DOCS)
    return DOCS.joinpath(*within.parts[1:]) if within.parts[0] == "zh-CN" else DOCS / "zh-CN" / within


def anchors(page: Path) -> set[str]:
    """Where a link into ``page`` may lead."""
    text = page.read_text("utf-8")
    titles = (
        re.sub(r"[^\w\- ]", "", title).strip() for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    )
    return {*re.findall(r'<a id="([^"]+)"', text), *(title.lower().replace(" ", "-") for title in titles)}


@pytest.mark.parametrize("name", [*NAMES, *EXAMPLES])
def test_links_within_the_repository(name: str) -> None:
    page = CHECKOUT / name
    for link, anchor in re.findall(r"\]\(([^)#:\s]*)#?([^)\s:]*)\)", page.read_text("utf-8")):
        target = page.parent / link if link else page
        assert target.exists(), f"{name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name} links to {link}#{anchor}"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("CHANGELOG.md", "CONTRIBUTING.md")])
def test_each_page_for_users_is_there_in_both_languages(name: str) -> None:
    assert twin(CHECKOUT / name).exists()
    assert twin(twin(CHECKOUT / name)) == CHECKOUT / name


def test_each_finding_has_its_code() -> None:
    said = "".join(path.read_text() for path in (CHECKOUT / "vlmpatch" / "tools").rglob("*.py"))
    assert set(re.findall(r'"([DL]\d\d)"', said)) == set(CODES)


@pytest.mark.parametrize("code", CODES.values(), ids=lambda code: code.id)
def test_each_code_can_be_asked_for(code: codes.Code, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", code.id.lower(), "--lang", "en"]) == 0
    assert capsys.readouterr().out.startswith(f"{code.id} · {code.title[0][:20]}")
    assert set(code.failures) <= failures.read(default_path()).known.keys()
