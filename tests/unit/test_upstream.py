"""``upstream/``: what is ready to be sent is whole, and the catalog says whether it was sent."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.generate import failures as pages
from tests.lab.upstream import UPSTREAM, cases, changed
from vlmpatch.catalog.location import default_path
from vlmpatch.tools.explain import failures

KNOWN = {Path(each.file).stem: each for each in failures.read(default_path()).known.values()}


@pytest.mark.parametrize("case", cases())
def test_a_report_is_whole(case: str) -> None:
    folder = UPSTREAM / case
    assert {path.name for path in folder.iterdir() if path.is_file()} == {
        "change.patch",
        "report.md",
        "reproduce.py",
    }
    report = (folder / "report.md").read_text("utf-8")
    (package,) = {name.partition("/")[0] for name in changed(case)}
    assert f"\nRepository: {REPOSITORIES[package]}\n" in report
    imported = {
        alias.name
        for node in ast.walk(ast.parse((folder / "reproduce.py").read_text("utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert "vlmpatch" not in imported | {name.partition(".")[0] for name in imported}


REPOSITORIES = {"transformers": "huggingface/transformers", "deepspeed": "deepspeedai/DeepSpeed"}


@pytest.mark.parametrize("case", cases())
def test_the_catalog_says_that_it_was_not_sent(case: str) -> None:
    assert KNOWN[case].reported == ()


def test_the_page_says_whether_upstream_knows() -> None:
    told = {id_: " ".join(pages.upstream(failure, "en")) for id_, failure in KNOWN.items()}
    place = "[`upstream/F17`](../../upstream/F17/report.md)"
    assert told["F17"].endswith(f"{place} has a reproduction, the smallest change and the text of a report.")
    assert told["F49"] == "**The newest releases have it; not reported yet.**"
    assert "reported:** https://github.com/deepspeedai/DeepSpeed/issues/7044" in told["F16"]
    assert told["F07"] == ""
    assert "(../../../upstream/F05/report.md)" in " ".join(pages.upstream(KNOWN["F05"], "zh"))
