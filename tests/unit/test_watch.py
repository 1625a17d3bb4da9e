"""What the watch is before there is a torch: silent, lazy, and asked for by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.lab.waits import completed
from vlmpatch.watch import training
from vlmpatch.watch.findings import SilentFailure
from vlmpatch.watch.verdict import tell

CHECKOUT = Path(__file__).resolve().parents[2]
PROBE = """
import sys, vlmpatch
lazy = ("vlmpatch.watch.training", "vlmpatch.tools")
print(any(name in sys.modules for name in lazy), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("value", "loaded"), [("", "False"), ("0", "False"), ("perhaps", "False"), ("1", "True")]
)
def test_only_who_asks_for_it_loads_it(value: str, loaded: str) -> None:
    environ = {**os.environ, "VLMPATCH_WATCH": value}
    done = completed([sys.executable, "-c", PROBE], cwd=CHECKOUT, env=environ)
    assert done.stdout.split() == [loaded, "False"], done.stderr
    assert ("VLMPATCH_WATCH" in done.stderr) == (value == "perhaps")


def test_a_finding_names_some_and_counts_the_others() -> None:
    names = tuple(f"layer{number}" for number in range(6))
    text = str(SilentFailure("6 parameters are wrong", names, "a bug"))
    assert text == "6 parameters are wrong: layer0, layer1, layer2, layer3 and 2 more. Likely cause: a bug"
    assert str(SilentFailure("the loss is wrong", (), "a bug")) == "the loss is wrong. Likely cause: a bug"


def test_what_concerns_one_rank_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "5")
    tell("for all")
    tell("its own", everywhere=True)
    assert capsys.readouterr().err == "vlmpatch watch: for all\nvlmpatch watch: rank 5: its own\n"


def test_no_other_name_is_made() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        _ = training.Nothing
