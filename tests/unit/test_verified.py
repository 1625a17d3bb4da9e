from __future__ import annotations

import pytest

from tests.matrix import rows, store
from vlmpatch.catalog.model import Entry
from vlmpatch.tools.doctor.verified import Proof, revision, sentence

TODAY = "c0ffee"


def said_of(
    verified: list[dict[str, str]],
    installed: dict[str, str],
    revisions: tuple[str, ...] = (TODAY,),
    today: str | None = TODAY,
) -> str:
    empty: tuple[str, ...] = ()
    entry = Entry(
        id="x",
        module="x",
        failures=empty,
        severity="crash",
        summary="",
        summary_zh="",
        targets=empty,
        requires={"transformers": ">=4", "torch": ">=2"},
        upstream=empty,
    )
    proven = [Proof(versions, frozenset(revisions)) for versions in verified]
    return sentence(entry, proven, installed, today)


OLD = {"transformers": "4.45.2", "torch": "2.13.0", "peft": "0.13"}
NEW = {"transformers": "5.0.0", "torch": "2.13.0", "peft": "0.18"}


@pytest.mark.parametrize(
    ("transformers", "torch", "said"),
    [
        ("5.0.0", "2.13.0+cpu", "verified on your exact versions"),
        ("4.57.6", "2.13.0", "between two verified versions (transformers 4.45.2 and 5.0.0)"),
        ("5.1.0", "2.13.0", "newer than anything verified (transformers 5.0.0 is the newest)"),
        ("5.0.0", "2.14.0", "newer than anything verified (torch 2.13.0 is the newest)"),
        ("4.44.0", "2.13.0", "older than anything verified (transformers 4.45.2 is the oldest)"),
        ("nightly", "2.13.0", "verified on other versions"),
    ],
)
def test_sentence(transformers: str, torch: str, said: str) -> None:
    assert said_of([OLD, NEW], {"transformers": transformers, "torch": torch}) == said


def test_each_version_known_but_never_together() -> None:
    mixed = [{"transformers": "5.0.0", "torch": "2.12.0"}, {"transformers": "5.1.0", "torch": "2.13.0"}]
    said = said_of(mixed, {"transformers": "5.0.0", "torch": "2.13.0"})
    assert said == "verified on each of these versions, not on all of them together"


@pytest.mark.parametrize("revisions", [(), ("0ld",)])
def test_what_was_measured_on_an_earlier_revision_says_so(revisions: tuple[str, ...]) -> None:
    said = said_of([OLD, NEW], {"transformers": "5.0.0", "torch": "2.13.0"}, revisions)
    assert said == "verified on your exact versions (an earlier revision of this patch)"


def test_where_nobody_asks_the_revision_is_not_said() -> None:
    versions = {"transformers": "5.0.0", "torch": "2.13.0"}
    assert said_of([OLD, NEW], versions, ("0ld",), today=None) == "verified on your exact versions"
    assert said_of([OLD], versions, today=None).startswith("newer than anything verified")


def test_one_revision_of_several_is_enough() -> None:
    said = said_of([OLD], {"transformers": "4.45.2", "torch": "2.13.0"}, ("0ld", TODAY))
    assert said == "verified on your exact versions"


def test_the_installed_patch_has_the_revision_that_the_matrix_records() -> None:
    row = rows.read()["ddp-unused"]
    entry = store.entries().entries[row.patch]
    assert revision(entry) == store.revision(row) != ""
    assert revision(entry._replace(module="nowhere.nothing")) == ""


def test_nothing_verified() -> None:
    assert said_of([], {"transformers": "5.0.0", "torch": "2.13.0"}) == "no verified versions on record"
