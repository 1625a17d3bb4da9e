"""A traceback that a notebook or rich has printed is the traceback: the lines around its code say nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.notebooks import FORMS
from tests.unit.test_explain import of
from tests.unit.test_explain_families import lines, pages
from tests.unit.test_explain_grounds import KINDS
from tests.unit.test_logs import LOGS
from vlmpatch.tools.explain import grounds, messages

# Of a file, and no part of the statement that failed.
AROUND = ("y = self.frob(x)", "if self.training:", ")", "# as before", "    return x", "self.steps += 1", "")
HEAD = 'Traceback (most recent call last):\n  File "/w/run.py", line 12, in <module>\n    main()\n'
LIBRARY = '  File "/opt/env/lib/python3.11/site-packages/{}", line {}, in {}\n    {}\n'
PLACES = ("quux/frob.py", "torch/nn/modules/module.py", "transformers/trainer.py", "datasets/load.py")
CODE = ("return self.frob(x)", "raise quux", "x = self.table[key]", "assert quux")
WORDS = st.text("abcdefghij_ ()[]=:.,'0123456789", min_size=1, max_size=60)
LINES = list(lines())


def alone(text: str) -> str:
    """What one of several ranks printed."""
    kept = [line for line in text.split("\n") if not re.match(r"\[rank[1-9]", line)]
    return "\n".join(re.sub(r"^\[rank0\]: ?", "", line) for line in kept)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_log_has_the_same_answer(log: object, form: str) -> None:
    text = alone(log.read_text("utf-8"))  # type: ignore[attr-defined]
    assert pages(FORMS[form](text, AROUND)) == pages(text)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("text", "page"), [each for each in KINDS if each[0].startswith("Traceback")])
def test_an_error_is_of_the_same_kind(text: str, page: str, form: str) -> None:
    found = of(FORMS[form](text, AROUND))
    other = found.hit.failure if found.hit else found.ground
    assert other is not None
    assert other.id == page


@given(
    st.sampled_from(LINES),
    st.sampled_from(list(FORMS)),
    st.sampled_from(PLACES),
    st.integers(1, 99_999),
    st.sampled_from(CODE),
    st.lists(st.sampled_from(AROUND), min_size=1, max_size=9),
    st.booleans(),
)
def test_whatever_stands_around_it(
    line: tuple[str, tuple[str, ...]],
    form: str,
    place: str,
    number: int,
    code: str,
    around: Sequence[str],
    whole: bool,
) -> None:
    """Also where the exception has not come: the lines below the one that is pointed at are no exception."""
    text = HEAD + LIBRARY.format(place, number, "step", code) + (line[0] + "\n" if whole else "")
    shown, plain = of(FORMS[form](text, around)), of(text)
    assert shown.first is not None
    assert plain.first is not None
    assert (shown.first.error, shown.first.cut) == (plain.first.error, plain.first.cut)
    if whole:
        assert pages(FORMS[form](text, around)) == pages(text)


@given(st.lists(WORDS, max_size=6), WORDS, st.lists(WORDS, max_size=6), st.integers(3, 99_999))
def test_the_code_is_the_line_that_is_pointed_at(
    above: list[str], code: str, below: list[str], number: int
) -> None:
    frame = f"File /w/quux.py:{number}, in frob(self)"
    arrow = "> ".rjust(7 - len(str(number)), "-")
    rows = [
        *(f"{at:7d} {row}" for at, row in enumerate(above, 1)),
        f"{arrow}{number} {code}",
        *(f"{at:7d} {row}" for at, row in enumerate(below, number + 1)),
    ]
    assert grounds.code("\n".join((frame, *rows))) == code.rstrip(" │").strip()


def test_a_statement_goes_on_where_it_begins_to_say_what_it_raises() -> None:
    rows = ("File /w/quux.py:7, in frob(self)", "----> 7 raise ValueError(", '      8     "do not find it"')
    assert grounds.code("\n".join(rows)) == 'raise ValueError("do not find it"'
    plain = (
        '  File "/w/quux.py", line 7, in frob\n    raise ValueError(\n    ...<2 lines>...\n    )'  # of 3.13
    )
    assert grounds.code(plain) == "raise ValueError("


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ("ValueError                                Traceback (most recent call last)", "ValueError"),
        ("torch.OutOfMemoryError Traceback (most recent call last):", "torch.OutOfMemoryError"),
        ("Unsupported      Traceback (most recent call last)", "Unsupported"),
        ("Error Traceback (most recent call last)", None),
        ("error     Traceback (most recent call last)", "error"),  # of struct, and others of the language
        ("ERROR     Traceback (most recent call last):", None),
        ("rank0 Traceback (most recent call last)", None),
        ("Traceback (most recent call last)", None),
    ],
)
def test_what_a_notebook_names_above_a_traceback(head: str, named: str | None) -> None:
    match = messages.HEADED.match(head)
    assert (match and match[1]) == named


def test_it_says_what_an_exception_is_that_never_comes() -> None:
    frame = "File /w/quux.py:7, in frob(self)\n      6 x = 1\n----> 7 y = self.frob(x)\n      8 z = 2\n"
    assert pages(f"OutOfMemoryError     Traceback (most recent call last)\n{frame}") == {"out-of-memory"}
    assert pages(f"Traceback (most recent call last)\n{frame}") == set()
