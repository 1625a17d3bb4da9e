"""What each patch file says of itself, in Chinese: beside the English it was made from, or not shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.generate.stories import owed, patch_files, stamp
from tests.lab import pages
from vlmpatch.tools.explain import stories

HEAD = '"""``a`` fails, in torch 2."""\n'
FILES = patch_files(pages.ROOT)
LINK, CODE = re.compile(r"https?://[^\s)>,;]+"), re.compile(r"`([^`\n]+)`")


@pytest.fixture
def patch(tmp_path: Path) -> Path:
    """A patch file whose head has been translated."""
    path = tmp_path / "patches" / "torch" / "a_patch.py"
    path.parent.mkdir(parents=True)
    path.write_text(HEAD)
    chinese = tmp_path / stories.FOLDER / "torch.toml"
    chinese.parent.mkdir(parents=True)
    known = stories.digest(stories.own_words(path))
    chinese.write_text(f"[a-patch]\nof = \"{known}\"\ntext = '''\n`a` \u62a5\u9519\n'''\n", "utf-8")
    return path


def test_a_head_in_both_languages(patch: Path) -> None:
    assert stories.told(patch, "en") == ("`a` fails, in torch 2.", True)
    assert stories.told(patch, "zh") == ("`a` \u62a5\u9519", True)
    assert [*owed(patch.parents[2])] == []


def test_the_english_is_shown_once_it_has_changed(patch: Path) -> None:
    patch.write_text(HEAD.replace("torch 2", "torch 3"))
    assert stories.told(patch, "zh") == ("`a` fails, in torch 3.", False)
    assert [*owed(patch.parents[2])] == [
        "docs/zh-CN/patches/torch.toml, a-patch: text, the English has changed since"
    ]


@pytest.mark.parametrize("chinese", ["", "[a-patch", "[a-patch]\nof = 3\n"])
def test_what_cannot_be_read_is_shown_in_english(chinese: str, patch: Path) -> None:
    stories.chinese_of(patch).write_text(chinese, "utf-8")
    assert stories.told(patch, "zh") == ("`a` fails, in torch 2.", False)


def test_a_line_that_ends_elsewhere_is_no_change(patch: Path) -> None:
    patch.write_text(HEAD.replace("fails, ", "fails,\n"))
    assert stories.told(patch, "zh").translated


def test_a_patch_without_chinese_is_owed_it(patch: Path) -> None:
    patch.rename(patch.with_name("other_patch.py"))
    assert [*owed(patch.parents[2])] == ["docs/zh-CN/patches/torch.toml, other-patch: text"]


def test_a_translation_that_was_read_again_is_shown(patch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch.write_text(HEAD.replace("torch 2", "torch 3"))
    monkeypatch.setattr(pages, "ROOT", patch.parents[2])
    assert stamp({"a-patch", "no-patch"}) == {"no-patch"}
    assert stories.told(patch, "zh").translated


def test_a_literal_with_a_backtick_in_it(patch: Path) -> None:
    patch.write_text('"""``x`` and ``with `y=1```."""\n')
    assert stories.own_words(patch) == "`x` and `` with `y=1` ``."


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_translation_has_the_links_and_no_other_code(path: Path) -> None:
    english, chinese = stories.told(path, "en").text, stories.told(path, "zh").text
    assert sorted(link.rstrip(".:") for link in LINK.findall(english)) == sorted(
        link.rstrip(".:") for link in LINK.findall(chinese)
    )
    words = " ".join(english.split())
    assert [code for code in CODE.findall(chinese) if code not in words] == []


def test_no_translation_is_left_of_a_patch_that_is_gone() -> None:
    ids = {path.stem.replace("_", "-") for path in FILES}
    for path in sorted((pages.ROOT / stories.FOLDER).glob("*.toml")):
        assert set(re.findall(r"^\[([a-z0-9-]+)\]$", path.read_text("utf-8"), re.MULTILINE)) <= ids
