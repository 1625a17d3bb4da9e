"""How a view gets to a terminal or a pipe."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.waits import completed
from vlmpatch.tools.view.page import Page, columns, wrapped

CHECKOUT = Path(__file__).resolve().parents[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(**environ: str) -> str:
    page = Page()
    page.add("[bold]not markup[/bold] :smile:", "head", "Seen")
    page.code("import vlmpatch", "Do this")
    stream = Terminal()
    page.show(stream, {"TERM": "xterm", **environ})
    return stream.getvalue()


def test_a_terminal_gets_colour_and_the_text_as_it_is() -> None:
    assert "\x1b[" in shown()
    assert "[bold]not markup[/bold] :smile:" in shown()


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_who_wants_no_colour_gets_none(environ: dict[str, str]) -> None:
    assert shown(**environ) == "Seen     [bold]not markup[/bold] :smile:\nDo this  import vlmpatch\n"


@given(st.text(alphabet="ab 参数,。(", max_size=200), st.integers(20, 90))
def test_wrapping_loses_nothing_and_fits(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    broken = [line for line in lines if columns(line) > width]
    assert all(len(line.split()) == 1 for line in broken)


def test_a_terminal_that_knows_ascii_only_is_no_trouble() -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    for verb in (["list"], ["explain", "F3"], ["doctor"], []):
        done = completed(
            [sys.executable, "-m", "vlmpatch", *verb, *(["--lang", "zh"] if verb else [])],
            cwd=CHECKOUT,
            env=environ,
        )
        assert done.returncode in (0, 1)
        assert "Traceback" not in done.stderr
