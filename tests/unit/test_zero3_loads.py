"""What ZeRO-3 loads, on record: whole, and what is wrong with vlmpatch too has its reason."""

from __future__ import annotations

from pathlib import Path

from tests.lab import zero3_loads as loads


def recorded() -> list[dict[str, str]]:
    return [about for kinds in loads.read().values() for about in kinds.values()]


def test_vlmpatch_makes_nothing_wrong() -> None:
    assert recorded()
    assert not [about for about in recorded() if loads.harmed(about)]


def test_what_is_left_wrong_says_why() -> None:
    wrong = {about["family"] for about in recorded() if loads.is_wrong(about, "patched")}
    assert wrong == {*loads.LEFT}


def test_both_sides_are_on_record() -> None:
    assert not [
        about for about in recorded() if not about["not made"] and not (about["bare"] and about["patched"])
    ]


def test_a_harm_is_one() -> None:
    right = {"bare": "=", "patched": "="}
    assert not loads.harmed(right)
    assert loads.harmed(right | {"patched": "1 wrong, a.weight is one"})
    assert not loads.harmed({"bare": "`an error`", "patched": "`an error`"})


def test_sides_are_merged_and_read_back(tmp_path: Path) -> None:
    found: loads.Found = {}
    lines = [{"class": "AForCausalLM", "module": "a", "loads": "="}]
    unmade = {"class": "BForCausalLM", "module": "b", "not made": "ImportError: timm"}
    loads.merge(found, "stack", "bare", [*lines, unmade])
    loads.merge(found, "stack", "patched", lines)
    loads.save(found, tmp_path / "loads.csv")
    assert loads.read(tmp_path / "loads.csv") == {
        "stack": {
            "AForCausalLM": {"family": "a", "bare": "=", "patched": "=", "not made": ""},
            "BForCausalLM": {"family": "b", "bare": "", "patched": "", "not made": "ImportError: timm"},
        }
    }


def test_the_page_shows_what_differs() -> None:
    page = loads.shown("en")
    assert "| Qwen3_5ForConditionalGeneration |" in page
    assert "| Qwen2VLForConditionalGeneration |" not in page
