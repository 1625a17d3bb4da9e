"""What is generated is what it is made from: `make generate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import generate
from tests.generate import untranslated
from tests.generate.failures import linked
from tests.lab import pages


def test_nothing_is_stale() -> None:
    stale = [str(path.relative_to(pages.ROOT)) for path in pages.stale(generate.wanted())]
    assert not stale, f"`make generate` writes these anew: {', '.join(stale)}"


def test_what_is_stale_is_written_and_the_rest_left(tmp_path: Path) -> None:
    new, old, same = tmp_path / "folder" / "new", tmp_path / "old", tmp_path / "same"
    old.write_text("before")
    same.write_text("text")
    wanted = {new: "text", old: "after\n", same: "text"}
    assert pages.stale(wanted) == pages.write(wanted) == [new, old]
    assert pages.stale(wanted) == []


def test_a_page_without_the_mark_is_told() -> None:
    assert pages.filled("a <!-- x -->\nold\n<!-- end --> b", "<!-- x -->", "new") == (
        "a <!-- x -->\n\nnew\n\n<!-- end --> b"
    )
    with pytest.raises(ValueError, match="no line <!-- y -->"):
        pages.filled("a <!-- x -->", "<!-- y -->", "new")


def test_links_go_by_way_of_the_folder() -> None:
    text = "[a](a.md#x), [b](https://example.org/b.md), [c](#c)"
    assert pages.rebased(text, "..") == "[a](../a.md#x), [b](https://example.org/b.md), [c](#c)"


def test_a_number_leads_to_its_section_unless_it_is_quoted() -> None:
    assert linked("F4, F4444 and `F4`; [F4](x)") == "[F4](#f4), F4444 and `F4`; [F4](x)"


def test_what_has_no_chinese_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compat.toml").write_text('[[patch]]\nid = "one"\n[[patch]]\nid = "two"\nsummary_zh = "二"\n')
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures" / "disk.toml").write_text(
        'id = "disk"\norder = 1\nforeign = true\ntitle = "Full"\ncause = "It is."\ncause_zh = "是"\n'
    )
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "torch.toml").write_text(
        '[[case]]\nid = "three"\ncell = {}\nen = "DDP"\n'
        '[[case]]\nid = "four"\ncell = {}\nen = "two"\nzh = "二"'
    )
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "one.py").write_text(
        'def look(code: Code) -> str | None:\n    return "{} is not installed; it is fixed"'
    )
    monkeypatch.setattr(untranslated, "default_path", lambda: str(tmp_path / "compat.toml"))
    assert untranslated.owed() == [
        "compat.toml, one: summary",
        "failures/, disk: title",
        "cases/, three: en",
        "patches/one.py: it is fixed",
    ]
