"""The documentation site as Markdown: each page is in both languages and the navigation, each link leads on.

``tests/site`` builds it and looks at it in a browser.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.generate.failures import CATALOG, KNOWN
from tests.lab.pages import DOCS, LANGUAGES
from tests.matrix import render, rows
from website import failure_pages, names, results, tree
from website.tree import Page

LOADS = re.compile(r"https?://|\bfetch\(|XMLHttpRequest|sendBeacon|@import")
ASSETS = Path(tree.__file__).parent
PAGES = {language: {page.address: page for page in tree.pages(language)} for language in LANGUAGES}
MOVED = {
    language: {address: tree.moved(page, {}) for address, page in those.items()}
    for language, those in PAGES.items()
}


def listed(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
        return
    for each in nav:
        for value in each.values() if isinstance(each, dict) else [each]:
            yield from listed(value)


def test_every_page_is_in_both_languages() -> None:
    english, chinese = (set(PAGES[language]) for language in LANGUAGES)
    assert english == chinese


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_is_in_the_navigation_once(language: str) -> None:
    assert sorted(listed(tree.navigation(language))) == sorted(PAGES[language])


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_of_docs_is_on_the_site(language: str) -> None:
    sources = {page.source for page in PAGES[language].values()}
    written = {path.relative_to(DOCS["en"].parent).as_posix() for path in DOCS[language].rglob("*.md")}
    here = {name for name in written if name.startswith("docs/zh-CN/") == (language == "zh")}
    assert here <= sources


@pytest.mark.parametrize("language", LANGUAGES)
def test_links_lead_to_pages_of_the_site(language: str) -> None:
    led = 0
    for address, text in MOVED[language].items():
        raw = re.findall(r'href="([^":#]+)\.html', text)
        for link in [*re.findall(r"\]\(([^):#\s]+\.md)", text), *(f"{each}.md" for each in raw)]:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(address), link))
            assert target in PAGES[language], f"{address} links to {link}"
            led += 1
    assert led > 500


def test_a_link_to_what_has_no_page_is_its_text() -> None:
    text = "[fragments](../../changelog.d/README.md), [F4](failures.md#f4), [x](https://e.org/x.md)"
    page = Page("a/b.md", text, "docs/reference/patches.md")
    assert tree.moved(page, {}) == "fragments, [F4](../failures/F4.md), [x](https://e.org/x.md)"


def test_a_link_that_shows_a_file_shows_its_title() -> None:
    page = Page("deploy.md", "[docs/doctor.md](doctor.md) and [this](doctor.md)", "docs/deploy.md")
    assert tree.moved(page, {"doctor.md": "Doctor"}) == "[Doctor](doctor.md) and [this](doctor.md)"


def test_a_wrapped_paragraph_of_chinese_has_no_space_where_it_was_wrapped() -> None:
    wrapped = (
        "退回 ZeRO-2、\n关掉检查点；\n`use_reentrant` 不变\n也行，用\nZeRO。\n- 一。\n- 二\n\n| 表。 |\n"
    )
    joined = "退回 ZeRO-2、关掉检查点；`use_reentrant` 不变也行，用\nZeRO。\n- 一。\n- 二\n\n| 表。 |\n"
    assert tree.unwrapped("一。\n{ .vp-lead }") == "一。\n{ .vp-lead }"
    code = "```\n其一，\n其二\n```"
    assert tree.unwrapped(wrapped + code) == joined + code
    assert not any("，\n的" in text for text in MOVED["zh"].values())


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_fixes_a_failure_stands_before_its_details(language: str) -> None:
    page = PAGES[language]["failures/F4.md"].text
    heads = [failure_pages.WORDS[language][name] for name in ("see", "why", "fixed", "without", "more")]
    places = [page.index(head) for head in heads]
    assert places == sorted(places)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_overview_is_called_so(language: str) -> None:
    (guides,) = (dict(each) for each in tree.navigation(language) if "overview.md" in [*listed([each])])
    assert [{tree.NAMED["overview.md"][LANGUAGES.index(language)]: "overview.md"}] == next(
        iter(guides.values())
    )[:1]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_failure_has_a_page_with_what_ends_it(language: str) -> None:
    for failure in KNOWN.known.values():
        page = MOVED[language].get(f"failures/{failure.id}.md")
        assert (page is None) == failure.foreign
        if page:
            assert failure.see[language == "zh"] in page
            for entry in failure.patches(CATALOG):
                assert f"(../patches/{entry.id}.md)" in page


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_patch_has_a_page_that_says_how_to_switch_it_off(language: str) -> None:
    for entry in CATALOG.entries.values():
        page = MOVED[language][f"patches/{entry.id}.md"]
        assert f"VLMPATCH_DISABLE={entry.id}" in page
        assert all(f"(../failures/{id_}.md)" in page for id_ in entry.failures)
        assert all(link in page for link in entry.upstream)


def test_the_compatibility_table_has_every_run_that_was_measured() -> None:
    page = PAGES["en"]["compatibility.md"].text
    table = page[page.index('<div class="vp-results"') :].partition("</div>")[0]
    assert table.count("<li ") == len(results.measured().pairs)
    found = re.findall(r'<li data-stack="([^"]+)" data-kind="(\w+)"', table)
    assert {kind for _, kind in found} == set(results.MARKS.values()) - {results.MARKS[render.WRONG]}
    assert {stack for stack, _ in found} == {stack for stack, _ in results.measured().pairs}


def test_every_row_has_a_family_and_an_engine_with_a_name() -> None:
    """Measured or not: a row is written first."""
    for row in rows.read().values():
        assert results.family(row), row.id
        assert results.engine(row), row.id


def test_what_the_site_brings_along_loads_nothing_from_elsewhere() -> None:
    """Links may lead anywhere; what a page loads by itself lies beside it."""
    own = [path for path in ASSETS.rglob("*") if path.suffix in (".js", ".css", ".html")]
    assert len(own) > 4
    for path in own:
        assert not LOADS.search(path.read_text("utf-8")), path


def test_no_line_ends_within_a_name() -> None:
    html = '<p title="ZeRO-3">ZeRO-3的<code>MiniCPM-V</code> and MiniCPM-V</p>\n<pre>a\n<b>ZeRO-3</b></pre>'
    name = '<span class="vp-name">{}</span>'.format
    shown = f'<p title="ZeRO-3">{name("ZeRO-3")}的<code>MiniCPM-V</code> and {name("MiniCPM-V")}</p>'
    assert names.on_page_content(html) == f"{shown}\n<pre>a\n<b>ZeRO-3</b></pre>"
