"""What is put on file of training programs that projects ship; the runs themselves are in ``tests/e2e``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab import forked, grid, launch, pages
from tests.lab.forked import Job
from tests.lab.launch import Finished
from tests.matrix import store
from tests.shipped import __main__ as lane
from tests.shipped import programs, table
from tests.shipped.programs import ALIKE, STEPS, Ended, Program
from tests.shipped.table import Line
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read as read_catalog

KNOWN, LEFT = programs.read()
PROGRAM = Program("tiny", "owner/name", "0123456789abcdef", "train.py", ())


def trained(norm: float = 1.0, weights: float = 2.0, output: str = "") -> Ended:
    result = {"steps": STEPS, "losses": [], "norms": [norm] * STEPS, "sums": {"weight": weights}}
    return Ended(0, result, output)


def died(output: str) -> Ended:
    return Ended(1, None, output)


def line(bare: Ended, patched: Ended, program: Program = PROGRAM, key: str = "key") -> Line:
    right = trained()
    return table.line_of(program, "ddp", right, table.bare_of(program, right, bare), patched, key)


def word_of(bare: Ended, patched: Ended, program: Program = PROGRAM) -> str:
    return line(bare, patched, program).word


@pytest.mark.parametrize(
    ("bare", "patched", "word"),
    [
        (trained(), trained(), "="),
        (trained(), trained(norm=1 + 2 * ALIKE), "harmed"),
        (trained(weights=2 - 5 * ALIKE), trained(), "fixed"),
        (died("RuntimeError: ready twice"), trained(), "fixed"),
        (died("RuntimeError: ready twice"), died("RuntimeError: ready twice"), "ends"),
        (trained(weights=1), died("RuntimeError: ready twice"), "ends now"),
    ],
)
def test_a_word_for_each(bare: Ended, patched: Ended, word: str) -> None:
    assert word_of(bare, patched) == word


def test_a_program_may_have_to_be_right_to_the_last_bit() -> None:
    exact = dataclasses.replace(PROGRAM, alike=0.0)
    near = trained(weights=2 + ALIKE / 10)
    assert word_of(near, near) == "="
    assert word_of(trained(), trained(), exact) == "="
    assert word_of(trained(), near, exact) in grid.HARM


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("Traceback\n[rank1]: torch.x.CheckpointError: other shapes\nlater", "CheckpointError: other shapes"),
        ("FileNotFoundError: No such file: '/data/a/b/c.json'", "FileNotFoundError: No such file: 'c.json'"),
        ("RuntimeError: Ready twice. One of these reasons: 1)", "RuntimeError: Ready twice"),
        ("ValueError: " + "x" * 500, "ValueError: " + "x" * (table.LONGEST - len("ValueError: "))),
        ("step 1", "hangs"),
        ("RuntimeError: [/a/b/gloo/transport/tcp/pair.cc:537] Connection reset by peer", "hangs"),
    ],
)
def test_how_a_run_ended_is_a_line_without_a_place(output: str, said: str) -> None:
    assert table.ending(died(output), trained()) == said


def test_what_the_reference_printed_too_did_not_end_a_run() -> None:
    caught = "TypeError: object of type 'NoneType' has no len()"
    right = trained()._replace(output=caught)
    assert table.ending(died(f"{caught}\nRuntimeError: ready twice"), right) == "RuntimeError: ready twice"


def test_each_patch_that_warned_is_named_once() -> None:
    printed = "vlmpatch [one]: a\nvlmpatch [two]: b\nvlmpatch [one]: c\n"
    assert table.warned(trained(output=printed)) == ("one", "two")


def test_what_is_on_file_is_of_programs_that_are_run() -> None:
    lines = table.read()
    assert lines
    for line in lines:
        program = KNOWN[line.program]
        assert line.engine in program.engines
        assert program.commit.startswith(line.commit)
        assert line.stack == program.stack
        assert line.word == ("fixed" if line.engine in program.fails else "=")
        assert line.word not in grid.HARM
        assert set(line.warnings.split()) <= set(program.says)


def test_every_warning_is_judged_in_both_languages() -> None:
    ids = {id_ for program in KNOWN.values() for id_ in program.says}
    for language in pages.LANGUAGES:
        judged = programs.judged(language)
        assert judged.keys() == ids
        assert all(judged.values())
    assert ids <= read_catalog(default_path()).entries.keys()


def test_what_a_program_says_itself_is_overruled_only_where_it_fails() -> None:
    overruling = {"explicit-reentrant-warning", "checkpointing-kwargs-after-construction"}
    for line in table.read():
        if overruling & set(line.warnings.split()):
            assert line.word == "fixed", line


def test_a_program_is_told_what_it_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"rows.yaml": "path: {made}/rows.json"}
    program = Program(
        "tiny", "owner/name", "c", "train.py", ("--data", "{files}/rows.yaml"), files=files, off=("--no",)
    )
    workshop = programs.Workshop(tmp_path)
    monkeypatch.setattr(workshop, "unpacked", lambda program: tmp_path / "root")
    plain, checkpointed = (
        workshop.job((program, engine), {"made": tmp_path / "made"}, tmp_path / engine)
        for engine in (programs.REFERENCE, "zero2")
    )
    assert "--no" in plain.words
    assert "--no" not in checkpointed.words
    assert checkpointed.words[checkpointed.words.index("--data") + 1] == str(tmp_path / "zero2" / "rows.yaml")
    assert (tmp_path / "zero2" / "rows.yaml").read_text() == f"path: {tmp_path / 'made'}/rows.json"


def test_a_program_that_ddp_does_not_run_is_held_to_another_plain_data_parallel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = dataclasses.replace(PROGRAM, settings={programs.REFERENCE: "zero0"}, off=("--no",))
    workshop = programs.Workshop(tmp_path)
    monkeypatch.setattr(workshop, "unpacked", lambda program: tmp_path / "root")
    words = workshop.job((program, programs.REFERENCE), {}, tmp_path / "reference").words
    assert "--no" in words
    configuration = json.loads(Path(words[words.index("--deepspeed") + 1]).read_text())
    assert configuration["zero_optimization"]["stage"] == 0


def test_the_maker_that_a_program_names_is_part_of_what_it_is_told() -> None:
    plain = Program("tiny", "owner/name", "c", "train.py", ("--model", "{made}/model"))
    own = dataclasses.replace(plain, arguments=("--model", "{qwen}/model"))
    assert (programs.makers(plain), programs.makers(own)) == ((), ("qwen",))
    assert programs.recipe() != programs.recipe(("qwen",))


def test_jobs_are_told_of_as_they_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job((str(number),), limit=1) for number in range(3)]
    told: list[Job] = []

    def run(stack: Any, command: Any, *, meanwhile: Any, limit: float, **more: Any) -> Finished:
        for number in range(3):
            (tmp_path / str(number)).touch()
            meanwhile()
            meanwhile()
            assert told == jobs[: number + 1]
        return Finished((), 0, "CODES 0 0\nCODES 1 0\nCODES 0 0\n", 1.0, timed_out=False, left=0)

    monkeypatch.setattr(launch, "run", run)
    ended = forked.run(None, jobs, tmp_path, begun=told.append)  # type: ignore[arg-type]
    assert [each.rc for each in ended.values()] == [0, 1, 0]


def test_what_is_on_file_is_current_until_the_program_or_a_patch_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = next(iter(KNOWN.values()))
    monkeypatch.setattr(table, "STORE", tmp_path / "shipped.csv")
    table.keep([line(trained(), trained(), program, table.key(program))])
    assert table.current() == {(program.id, "ddp")}

    said = dataclasses.replace(program, fails=("ddp",), says=("a-patch",))
    assert table.key(said) == table.key(program)
    told = dataclasses.replace(program, arguments=(*program.arguments, "--more"))
    monkeypatch.setattr(programs, "read", lambda: ({program.id: told}, ()))
    assert not table.current()

    monkeypatch.undo()
    monkeypatch.setattr(table, "STORE", tmp_path / "shipped.csv")
    monkeypatch.setattr(store, "patches", lambda stack, script: {"a": "another"})
    assert not table.current()
    assert table.bare_on_file().keys() == {(program.id, "ddp")}, "no patch was in force there"


@pytest.mark.parametrize("patched", [trained(), trained(norm=2), died("RuntimeError: ready twice")])
@pytest.mark.parametrize("bare", [trained(), trained(norm=2), died("RuntimeError: ready twice"), died("")])
def test_a_run_without_vlmpatch_says_the_same_from_the_file(
    bare: Ended, patched: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = next(iter(KNOWN.values()))
    monkeypatch.setattr(table, "STORE", tmp_path / "shipped.csv")
    table.keep([line(bare, patched, program)])
    assert table.bare_on_file() == {(program.id, "ddp"): table.bare_of(program, trained(), bare)}

    told = dataclasses.replace(program, arguments=(*program.arguments, "--more"))
    monkeypatch.setattr(programs, "read", lambda: ({program.id: told}, ()))
    assert not table.bare_on_file()


def test_only_what_is_not_on_file_is_run_without_vlmpatch(monkeypatch: pytest.MonkeyPatch) -> None:
    program = next(iter(KNOWN.values()))
    asked: dict[bool, list[programs.Run]] = {True: [], False: []}

    def run(stack: str, runs: list[programs.Run], *, patched: bool) -> dict[programs.Run, Ended]:
        asked[patched] += runs
        return {each: trained() for each in runs}

    workshop = programs.Workshop(Path())
    monkeypatch.setattr(workshop, "run", run)
    on_file = {(program.id, "ddp"): table.Bare("waits for ever", right=False, ended=True)}
    runs = [(program, "ddp"), (program, "zero2")]
    lines = list(lane.ran(workshop, program.stack, runs, on_file))
    assert [(each.engine, each.word, each.bare) for each in lines] == [
        ("ddp", "fixed", "waits for ever"),
        ("zero2", "=", "0"),
    ]
    assert asked[True] == [(program, programs.REFERENCE), *runs]
    assert asked[False] == [(program, "zero2")]


def test_a_program_depends_on_patches_of_files_that_lie_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """MiniCPM-V's ``trainer`` and its remote code are in no package of a stack."""
    program, patches = KNOWN["minicpmv"], store.patches
    before = table.key(program)

    def otherwise(*asked: Any, **more: Any) -> dict[str, str]:
        return {
            id_: "another" if id_ == "trainer-self-model-under-ddp" else digest
            for id_, digest in patches(*asked, **more).items()
        }

    monkeypatch.setattr(store, "patches", otherwise)
    assert table.key(program) != before
