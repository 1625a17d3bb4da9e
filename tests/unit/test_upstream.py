"""``upstream/``: what is ready to be sent is whole, and the catalog says whether it was sent."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.generate import failures as pages
from tests.lab.upstream import SAME_REPORT, STACK, UPSTREAM, cases, package
from tests.matrix import rows, store
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read
from vlmpatch.tools.explain import failures

NEWEST = (STACK, "torch2150")
RESULTS = store.Store()
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
    assert f"\nRepository: {REPOSITORIES[package(case)]}\n" in report
    imported = {
        alias.name
        for node in ast.walk(ast.parse((folder / "reproduce.py").read_text("utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert "vlmpatch" not in imported | {name.partition(".")[0] for name in imported}


REPOSITORIES = {
    "accelerate": "huggingface/accelerate",
    "deepspeed": "deepspeedai/DeepSpeed",
    "llamafactory": "hiyouga/LlamaFactory",
    "peft": "huggingface/peft",
    "swift": "modelscope/ms-swift",
    "torch": "pytorch/pytorch",
    "transformers": "huggingface/transformers",
    "trl": "huggingface/trl",
}


@pytest.mark.parametrize("case", sorted({*cases(), *SAME_REPORT}))
def test_the_catalog_says_whether_it_was_sent(case: str) -> None:
    assert KNOWN[case].reported is not None


def test_what_the_newest_releases_have_is_ready_to_be_reported() -> None:
    """Everything but what has a reason (``stays``) in its place."""
    open_ = {id_ for id_, each in KNOWN.items() if each.reported is not None}
    assert len(open_) > 30
    assert sorted(open_ - {*cases(), *SAME_REPORT}) == []


def test_a_failure_is_to_be_reported_or_says_why_not() -> None:
    assert [id_ for id_, each in KNOWN.items() if each.reported is not None and each.stays[0]] == []


@pytest.mark.parametrize("case", cases())
def test_a_report_names_the_threads_that_it_belongs_to(case: str) -> None:
    told = {url for id_ in (case, *_told_by(case)) for url in KNOWN[id_].reported or ()}
    report = (UPSTREAM / case / "report.md").read_text("utf-8")
    assert [url for url in sorted(told) if url not in report] == []


def _told_by(case: str) -> list[str]:
    """The failures that its report tells of, too."""
    return [other for other, report in SAME_REPORT.items() if report == case]


def test_reports_that_tell_of_another_failure_are_there() -> None:
    assert set(SAME_REPORT.values()) <= set(cases())
    assert not set(SAME_REPORT) & set(cases())


def fails_on_the_newest(row: str) -> bool:
    """Whether a run there was wrong without vlmpatch and right with it."""
    outcomes = [[RESULTS.get(stack, row, side) for side in store.SIDES] for stack in NEWEST]
    return any(
        bare and patched and bare.outcome != "right" and patched.outcome == "right"
        for bare, patched in outcomes
    )


def test_of_a_failure_that_the_newest_releases_show_the_catalog_says_whether_upstream_knows() -> None:
    entries = read(default_path()).entries
    shown = {
        plain(failure)
        for row in rows.every().values()
        if fails_on_the_newest(row.id)
        for failure in row.failures or entries[row.patch].failures
    }
    assert len(shown) > 10
    told = {id_ for id_, each in KNOWN.items() if each.reported is not None or each.stays[0]}
    assert sorted(shown - told) == []


def plain(failure: str) -> str:
    return f"F{int(failure[1:]):02d}" if failure[1:].isdigit() else failure


def test_the_page_says_whether_upstream_knows() -> None:
    told = {id_: " ".join(pages.upstream(failure, "en")) for id_, failure in KNOWN.items()}
    place = "[`upstream/F17`](../../upstream/F17/report.md)"
    assert told["F17"].endswith(f"{place} has a reproduction, the smallest change and the text of a report.")
    unknown = KNOWN["F17"]._replace(id="F999")
    assert [*pages.upstream(unknown, "en")] == ["**The newest releases have it; not reported yet.**"]
    assert "reported:** https://github.com/deepspeedai/DeepSpeed/issues/7044" in told["F16"]
    assert told["F04"] == ""
    assert told["F26"].endswith(
        "nothing to report:** DeepSpeed documents that weights are empty outside the engine."
    )
    assert told["F40"].endswith("the text of a report.")
    assert "(../../upstream/F53/report.md)" in told["F50"]
    assert "(../../../upstream/F05/report.md)" in " ".join(pages.upstream(KNOWN["F05"], "zh"))
