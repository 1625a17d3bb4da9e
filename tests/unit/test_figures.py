"""Figures show their traces, and the traces what the text beside them says."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.generate import figures
from tests.lab.pages import LANGUAGES, ROOT

SHEETS = {"wide": figures.WIDE, "narrow": figures.NARROW}


def events(name: str, language: str = "en", sheet: figures.Sheet = figures.WIDE) -> list[str]:
    """The classes of the elements that stand for an event."""
    drawn = ElementTree.fromstring(figures.figure(name, language, sheet))
    return [each.get("class", "") for each in drawn.iter() if "event" in each.get("class", "").split()]


@pytest.mark.parametrize("sheet", SHEETS.values(), ids=SHEETS)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", figures.FIGURES)
def test_every_event_of_a_trace_is_in_its_figure(name: str, language: str, sheet: figures.Sheet) -> None:
    assert len(events(name, language, sheet)) == len(figures.read(name)) > 0


@pytest.mark.parametrize("sheet", SHEETS.values(), ids=SHEETS)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", figures.FIGURES)
def test_nothing_lies_beside_its_sheet(name: str, language: str, sheet: figures.Sheet) -> None:
    drawn = ElementTree.fromstring(figures.figure(name, language, sheet))
    width, height = map(float, drawn.attrib["viewBox"].split()[2:])
    for box in drawn.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, wide, high = (float(box.attrib[each]) for each in ("x", "y", "width", "height"))
        assert 0 <= x < x + wide <= width
        assert 0 <= y <= y + high <= height


@given(st.text("ab \u4e00\uff0c", max_size=60))
@example("aaaaaaaaaaaaaaaaa \uff0c")
def test_a_title_in_lines_is_the_same_title(said: str) -> None:
    made = figures.lines(said, 120)
    assert "".join("".join(made).split()) == "".join(said.split())
    # A closing mark stays beside what it closes, however long the line is.
    closed = [line.rstrip(figures.CLOSING + " ") for line in made]
    assert all(len(line) <= 18 or " " not in line for line in closed)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_drawn_from_its_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rows = figures.figure(name, "en"), figures.read(name)
    monkeypatch.setattr(figures, "read", lambda _: rows[:-1])
    assert figures.figure(name, "en") != before


def test_a_reentrant_backward_is_ready_twice_where_the_other_is_once() -> None:
    ready = [row for row in figures.read("reentrant") if row["event"] == "ready"]
    times = {
        mode: max(int(row["time"]) for row in ready if row["checkpointing"] == mode)
        for mode in ("reentrant", "nonreentrant")
    }
    assert times == {"reentrant": 2, "nonreentrant": 1}
    assert sum("wrong" in kind for kind in events("reentrant")) == 2


def test_a_block_is_gathered_as_often_as_without_checkpointing() -> None:
    rows = figures.read("gathers")
    off, stock, ours = (
        figures.gathered([row for row in rows if row["run"] == run]) for run in ("off", "stock", "vlmpatch")
    )
    assert off == pytest.approx(2, abs=0.05)
    assert ours == pytest.approx(off, abs=0.05)
    assert stock > 2.7


def test_ranks_with_and_without_an_image_part_unless_vlmpatch_is_there() -> None:
    rows = figures.read("ranks")
    modules = {
        run: [[row["module"] for row in rows if (row["run"], row["rank"]) == (run, rank)] for rank in "01"]
        for run in ("stock", "vlmpatch")
    }
    assert modules["vlmpatch"][0] == modules["vlmpatch"][1]
    assert modules["stock"][0][-1] != modules["stock"][1][-1]
    last = [[row for row in rows if (row["run"], row["rank"]) == ("stock", rank)][-1] for rank in "01"]
    assert [row["event"] for row in last] == ["begins", "begins"]
    assert sum("wrong" in kind for kind in events("ranks")) == 2


def test_a_step_without_an_image_has_the_gradient_of_the_one_before() -> None:
    used = {(row["run"], row["step"]): row["gradient"] for row in figures.read("stale")}
    assert used["stock", "2"] == used["stock", "1"] != "0"
    assert [used["vlmpatch", step] for step in "123"] == [used["right", step] for step in "123"]
    assert used["right", "2"] == "0"


def test_colours_are_those_of_the_site_too() -> None:
    """A figure on its own and one on a page have a colour for the same classes."""
    styled = (ROOT / "website" / "assets" / "site.css").read_text("utf-8")
    for name, colour in re.findall(r"\.(\w+)\{fill:(#\w{6})\}", figures.STYLE.partition("@media")[0]):
        assert f".vp-figure .{name} {{ fill: {colour}; }}" in styled
