"""The matrix's own logic: what counts as a contradiction, what is stale, what is written."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import families
from tests.lab import envs
from tests.lab.cells import Result
from tests.matrix import bisect, drift, judge, render, rows, store
from tests.matrix.judge import Outcome
from tests.matrix.store import Store
from vlmpatch.catalog.model import Entry
from vlmpatch.tools.cases import Case
from vlmpatch.tools.doctor import verified
from vlmpatch_lab.cell import Cell

STACKS = envs.read_stacks()
STACK = STACKS["tf457-ds0182"]
ENTRY = store.entries().entries["gradient-checkpointing-default"]
FAILED = Outcome("error", "RuntimeError: ready only once")
RIGHT = Outcome("right")
APPLIED = Outcome("right", applied="gradient-checkpointing-default")
RESULT = Result(
    id="c",
    ok=True,
    error=None,
    tensors=4,
    missing=(),
    difference=0.0,
    between_ranks=0.0,
    losses=(),
    patches={"a": "applied", "b": "conflict", "c": "armed"},
    digests=(),
    log="x\nvlmpatch [a]: careful\n",
    seconds=1.0,
)


def row(**changes: Any) -> Case:
    given: dict[str, Any] = {"id": "r", "failures": ("F3",), "en": "", "zh": "", "cell": Cell()}
    given |= {"patch": ENTRY.id, "fails": "error: ready only once"}
    return Case(**{**given, **changes})


def faults(bare: Outcome, patched: Outcome, entry: Entry | None = ENTRY, **changes: Any) -> str:
    return " / ".join(judge.faults(row(**changes), entry, rows.versions(STACK), bare, patched))


def test_a_row_that_bears_its_gate_out() -> None:
    assert faults(FAILED, APPLIED) == ""
    assert faults(RIGHT, RIGHT) == ""


def test_a_gate_that_is_open_without_need() -> None:
    assert "is applied, but the bare run is right" in faults(RIGHT, APPLIED)


def test_a_gate_that_misses_the_bug() -> None:
    assert "claims nothing here, but the bare run is error" in faults(FAILED, RIGHT)


def test_another_failure_than_the_row_names() -> None:
    assert "the bare run is error (out of memory)" in faults(Outcome("error", "out of memory"), APPLIED)


def test_a_patch_that_does_not_help() -> None:
    broken = dataclasses.replace(APPLIED, outcome="missing", detail="3 trainable tensors without gradient")
    assert faults(FAILED, broken) == "with vlmpatch the run is missing (3 trainable tensors without gradient)"


def test_a_narrower_claim_than_the_gate() -> None:
    assert faults(RIGHT, APPLIED, where={"transformers": ">=5"}) == ""
    assert "the bare run is right" in faults(RIGHT, APPLIED, where={"transformers": ">=4"})


def test_what_the_user_said_is_overruled_with_a_warning() -> None:
    said = dataclasses.replace(APPLIED, warned="vlmpatch [x]: True was passed, and")
    assert faults(FAILED, said, warns="True was passed") == ""
    silent = dataclasses.replace(said, warned="")
    assert "the warning was not printed" in faults(FAILED, silent, warns="True was passed")
    failed = dataclasses.replace(said, outcome="error", detail="boom")
    assert "with vlmpatch the run is error (boom)" in faults(FAILED, failed, warns="True was passed")


def test_a_patch_in_trouble_and_one_that_does_not_exist() -> None:
    assert "x failed or is in conflict" in faults(RIGHT, Outcome("right", troubled=("x",)))
    assert "no patch" in faults(RIGHT, RIGHT, entry=None)


def test_a_patch_no_row_needs_is_noted() -> None:
    assert judge.unproven([(row(), RIGHT, APPLIED)]) == [ENTRY.id]
    assert judge.unproven([(row(), RIGHT, APPLIED), (row(id="s"), FAILED, APPLIED)]) == []


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "right"),
        ({"ok": False, "error": "boom"}, "error"),
        ({"tensors": 0}, "error"),
        ({"difference": None}, "error"),
        ({"difference": None, "measured": True}, "right"),
        ({"missing": ("a",)}, "missing"),
        ({"difference": 1e-3}, "difference"),
        ({"difference": float("nan")}, "difference"),
        ({"difference": float("nan"), "between_ranks": float("nan")}, "difference"),
        ({"between_ranks": 0.5, "missing": ("a",)}, "ranks"),
        ({"parameters": 0.1}, "difference"),
        ({"parameters": 1e-4}, "right"),
    ],
)
def test_the_worst_thing_a_cell_shows(changes: dict[str, Any], outcome: str) -> None:
    found = judge.outcome(dataclasses.replace(RESULT, **changes), "a")
    assert found.outcome == outcome
    assert (found.applied, found.troubled, found.warned) == ("a", ("b",), "vlmpatch [a]: careful")


@pytest.mark.parametrize("patch", ["b", "c", "unknown", ""])
def test_what_another_patch_does_and_says_is_not_the_rows(patch: str) -> None:
    found = judge.outcome(RESULT, patch)
    assert (found.applied, found.warned) == ("", "")


def test_what_is_kept_names_no_folder_of_this_machine() -> None:
    error = "no flag ['--logging_dir=/tmp/a-b/c.d', 'and/or 1/2'], see https://example.org/x"
    log = "vlmpatch [a]: /home/me/trainer.py should say so\n"
    found = judge.outcome(dataclasses.replace(RESULT, ok=False, error=error, log=log), "a")
    assert found.detail == "no flag ['--logging_dir=<path>', 'and/or 1/2'], see https://example.org/x"
    assert found.warned == "vlmpatch [a]: <path> should say so"


def test_what_makes_a_result_stale() -> None:
    bare, patched = store.key(STACK, row(), "bare"), store.key(STACK, row(), "patched")
    assert bare != patched
    assert store.key(STACK, row(en="other words", id="other"), "bare") == bare
    assert store.key(STACK, row(cell=Cell(engine="zero2")), "bare") != bare
    moved = dataclasses.replace(STACK, packages=(*STACK.packages, "peft==0.99"))
    assert store.key(moved, row(), "bare") != bare


def test_what_is_switched_off_makes_the_patched_side_stale_alone() -> None:
    row = rows.read()["ddp-unused"]
    other = dataclasses.replace(row, without=("batches-without-images",))
    assert store.key(STACK, row, "bare") == store.key(STACK, other, "bare")
    assert store.key(STACK, row, "patched") != store.key(STACK, other, "patched")


def test_a_scripts_results_depend_on_the_other_patches_too() -> None:
    script = row(how="script", patch="minicpmv-init-arguments")
    assert store.key(STACK, script, "bare") != store.key(STACK, row(), "patched")
    assert "minicpmv-init-arguments" in store.patches(STACK, script=True)
    assert "trl-forced-reentrant" not in store.patches(STACK, script=True)


def test_only_patches_in_reach_make_the_patched_side_stale() -> None:
    reach = store.patches(STACK)
    assert "gradient-checkpointing-default" in reach
    assert "gradient-checkpointing-default" not in store.patches(STACKS["tf523-ds0198"])
    assert "swift-checkpoint-override" not in reach
    assert "trainer-use-apex" not in reach  # its target is the user's own script


def measured_today(row: Case) -> tuple[Outcome, Outcome]:
    pins = rows.versions(STACK)
    bare = dataclasses.replace(FAILED, key=store.key(STACK, row, "bare"), versions=pins)
    return bare, dataclasses.replace(
        APPLIED, key="of other patches", revision=store.revision(row), versions=pins
    )


def test_what_other_patches_became_makes_no_result_an_earlier_one() -> None:
    bare, patched = measured_today(row())
    assert store.is_current(STACK, row(), bare, patched)


@pytest.mark.parametrize("revision", ["", "0123456789ab"])
def test_another_revision_of_the_rows_patch_does(revision: str) -> None:
    bare, patched = measured_today(row())
    assert not store.is_current(STACK, row(), bare, dataclasses.replace(patched, revision=revision))


def test_so_do_other_pins_and_another_cell() -> None:
    bare, patched = measured_today(row())
    moved = dataclasses.replace(patched, versions={**patched.versions, "peft": "0.1"})
    assert not store.is_current(STACK, row(), bare, moved)
    assert not store.is_current(STACK, row(cell=Cell(engine="zero2")), bare, patched)


def test_a_row_without_a_patch_and_a_script_depend_on_every_patch() -> None:
    for other in (row(patch="", fails=""), row(how="script", patch="minicpmv-init-arguments")):
        bare, patched = measured_today(other)
        assert not store.is_current(STACK, other, bare, patched)
        fresh = dataclasses.replace(patched, key=store.key(STACK, other, "patched"))
        assert store.is_current(STACK, other, bare, fresh)


def test_the_page_marks_what_is_of_an_earlier_revision() -> None:
    known = rows.read()["ddp-unused"]
    measured = render.Measured(Store(Path("/nonexistent")))
    measured.pairs = {(STACK.name, known.id): (FAILED, dataclasses.replace(APPLIED, date="2026-01-02"))}
    measured.faults = {(STACK.name, known.id): []}
    assert measured.symbol(STACK.name, known) == render.FIXED
    assert measured.standing(render.WORDS["en"]).startswith("1 of 1 results are of the row")
    measured.earlier = {(STACK.name, known.id)}
    assert measured.symbol(STACK.name, known) == render.FIXED + render.EARLIER
    assert "1 (2026-01-02), marked \\*, were measured on an earlier" in measured.standing(render.WORDS["en"])


def test_rows_name_patches_and_models_that_exist() -> None:
    known = rows.read()
    assert {r.patch for r in known.values()} - {""} <= store.entries().entries.keys()
    assert {name for r in known.values() for name in r.without} <= store.entries().entries.keys()
    assert {r.cell.kind for r in known.values() if r.how != "script"} <= {*families.names()}
    assert all(any(rows.runs_on(r, stack) for stack in STACKS.values()) for r in known.values())


def test_zero_does_not_run_where_gloo_cannot() -> None:
    ids = {r.id for r in rows.read().values() if rows.runs_on(r, STACKS["torch212"])}
    assert "ddp-unused" in ids
    assert not ids & {"zero2-two-forwards", "zero3-lora", "script-typing-names"}


def test_there_are_stacks_on_both_ends() -> None:
    seen = [rows.versions(stack) for stack in STACKS.values()]
    assert len(STACKS) >= 9
    for package in ("transformers", "deepspeed"):
        assert len({versions[package] for versions in seen}) >= 9


def test_the_record_holds_the_stacks_a_patch_was_seen_to_mend() -> None:
    measured = render.Measured(Store(Path("/nonexistent")))
    measured.stacks = {STACK.name: STACK}
    revisions = {"ddp-unused": "0123456789ab", "ddp-two-forwards": "ba9876543210", "zero2-two-forwards": ""}
    measured.pairs = {
        (STACK.name, name): (FAILED, dataclasses.replace(APPLIED, revision=revision))
        for name, revision in revisions.items()
    }
    measured.faults = {key: [] for key in measured.pairs}
    (proofs,) = verified.read(render.verified_csv(measured).splitlines()).values()
    assert [proof.versions["transformers"] for proof in proofs] == ["4.57.6"]
    assert [proof.revisions for proof in proofs] == [{"0123456789ab", "ba9876543210"}]


# --- drift ----------------------------------------------------------------------------------------


def probe(version: str, says: str, gate: bool = True, digest: str = "a") -> dict[str, Any]:
    target = {"says": says, "reason": "because", "parts": {"f": digest}}
    patch = {"gate": gate, "why": f"transformers {version}", "targets": {"transformers.x": target}}
    return {"versions": {"transformers": version}, "patches": {"p": patch}}


def drifted(seen: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    entry = ENTRY._replace(id="p", requires={"transformers": ">=4"})
    return [line[:4].strip() for line in drift.report(seen, recorded, {"p": entry})]


def test_drift() -> None:
    old = {"old": probe("4.0", "bug"), "older": probe("3.0", "bug", digest="z")}
    assert drifted(probe("5.0", "bug"), old) == ["ok"]
    assert drifted(probe("5.0", "bug", digest="b"), old) == ["READ"]
    assert drifted(probe("5.0", "no bug"), old)[0] == "ACT"
    assert drifted(probe("5.0", "no bug", gate=False), old) == ["ok"]
    assert drifted(probe("5.0", "bug", gate=False), old) == ["ACT"]
    assert drifted(probe("5.0", "unrecognised"), old) == ["ACT"]
    assert drifted(probe("5.0", "unrecognised", gate=False), old) == ["READ"]


def test_drift_compares_with_the_nearest_release_of_what_holds_the_target() -> None:
    """Whatever else the gate asks for."""
    seen, near, far = probe("5.0", "bug"), probe("4.9", "bug"), probe("4.0", "bug", digest="z")
    later = probe("6.0", "bug", digest="z")
    for each, accelerate in ((seen, "1.1"), (near, "1.0"), (far, "1.1"), (later, "1.0")):
        each["versions"]["accelerate"] = accelerate
    entry = ENTRY._replace(id="p", requires={"accelerate": ">=1"})
    (line,) = drift.report(seen, {"near": near, "far": far, "later": later}, {"p": entry})
    assert line.startswith("ok")


def test_a_bug_that_another_target_shows_to_be_gone_asks_for_nothing() -> None:
    seen = probe("5.0", "bug", gate=False)
    seen["patches"]["p"]["targets"]["transformers.y"] = {"says": "no bug", "reason": "because", "parts": {}}
    assert drifted(seen, {"old": probe("4.0", "bug")}) == ["ok", "ok"]


def test_drift_reads_the_torch_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sources alone: the compiled parts are gigabytes."""

    def fetched(pins: Sequence[str], beneath: str = "drift") -> Path:
        folder = tmp_path / beneath / "_".join(pins)
        (folder / "torch" / "lib").mkdir(parents=True)
        for name in ("nn.py", "_C.so", "lib/libtorch.so.2"):
            (folder / "torch" / name).touch()
        return folder

    monkeypatch.setattr(drift, "fetched", fetched)
    monkeypatch.setattr(drift, "_probe", lambda python, env: {"path": env["PYTHONPATH"]})
    path = drift.in_releases(["torch==99.0", "peft==1.0"])["path"]
    others, torch = map(Path, path.split(os.pathsep)[1:])
    assert (others.name, torch.name) == ("peft==1.0", "torch==99.0")
    assert [path.name for path in torch.rglob("*") if path.is_file()] == ["nn.py"]
    assert (others / "torch" / "_C.so").exists()


def test_recorded_shapes_cover_the_stacks() -> None:
    recorded = {path.stem for path in drift.SHAPES.iterdir()}
    assert len(recorded) >= 9
    assert recorded <= set(STACKS)


def test_no_open_gate_meets_a_shape_its_patch_does_not_know() -> None:
    recorded = drift.shapes()
    unknown = [
        f"{stack}: {name} ({target}): {look['reason']}"
        for stack, probe in recorded.items()
        for name, patch in probe["patches"].items()
        for target, look in patch["targets"].items()
        if patch["gate"] and look["says"] == "unrecognised"
    ]
    assert unknown == []


@pytest.mark.parametrize("first", range(1, 8))
def test_bisection_finds_neighbours(first: int, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def says(version: str) -> str:
        asked.append(version)
        return "fails" if int(version) >= first else "right"

    assert bisect.find([str(number) for number in range(8)], says) == (str(first - 1), str(first))
    assert len(asked) <= 5
    assert f"changes between {first - 1} and {first}" in capsys.readouterr().out


def test_bisection_with_nothing_to_find() -> None:
    assert bisect.find(["1", "2", "3"], lambda version: "right") is None
