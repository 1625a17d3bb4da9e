"""``retire`` names what is still to come for what is installed here, and nothing that has happened."""

from __future__ import annotations

import json

import pytest

from tests.conftest import PATCH, World
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read
from vlmpatch.tools import cli, retire
from vlmpatch.tools.doctor import verified
from vlmpatch.tools.retire import Retirement, Upgrade
from vlmpatch.tools.view.language import Words

FIXED = PATCH.replace('return "greet is fixed upstream"', 'return "fixed"').replace(
    'if "goodbye" in function', 'if "hello" in function'
)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = verified.Proof({"fakelib": "2.1"})
    monkeypatch.setattr(verified, "proofs", lambda: {"another": [proof]})


def test_what_is_to_come_what_no_release_ends_and_what_is_over(world: World) -> None:
    world.distribution("fakelib", "1.5")
    target = world.package("target")
    minor = world.patch(target, '{ fakelib = ">=1,<1.7.2.dev0" }')
    major = world.patch(target, '{ fakelib = ">=1,<2.0.0.dev0" }')
    to_come = world.patch(target, '{ fakelib = ">=1,<3.dev0" }')
    unbounded = world.patch(target, '{ fakelib = ">=1" }')
    done = world.patch(target, '{ fakelib = ">=1,<1.4.dev0" }')
    later = world.patch(target, '{ fakelib = ">=1.6,<1.8.dev0" }')
    absent = world.patch(target, '{ otherlib = "<1.8.dev0" }')
    fixed = world.patch(target, '{ fakelib = ">=1" }', FIXED)
    assert retire.retirement(world.catalog()) == Retirement(
        (Upgrade("fakelib", "1.7.2", (minor,), "1.5"), Upgrade("fakelib", "2.0.0", (major,), "1.5")),
        (to_come, unbounded),
        (done, later, absent, fixed),
    )


def test_where_nothing_acts_there_is_nothing_to_end(world: World) -> None:
    world.patch("target", '{ otherlib = ">=1" }')
    assert retire.page(world.catalog(), Words("en")).text().startswith("1 patches have nothing to do here")


def test_every_bound_that_is_no_release_is_a_major_version(capsys: pytest.CaptureFixture[str]) -> None:
    """So a gate that is left open cannot be taken for one that a release has closed."""
    newest = {"torch": "9", "transformers": "5.23.0", "deepspeed": "0.19.8", "ms-swift": "4.6.0"}
    still_open = {
        bound
        for entry in read(default_path()).entries.values()
        for bound in retire.bounds(entry)
        if not retire._is_release(*bound, newest)
    }
    assert {package for package, _ in still_open} <= {
        "transformers",
        "deepspeed",
        "ms-swift",
        "llamafactory",
        "accelerate",
        "trl",
    }
    assert ("ms-swift", "3.6.1") not in still_open
    assert cli.main(["retire", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unended"] == []
