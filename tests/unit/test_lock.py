"""A lock says what is applied; what differs from it is told, and refused only where that was asked for."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import PATCH, World
from vlmpatch import __version__
from vlmpatch.catalog import environment
from vlmpatch.engine import engine, locked
from vlmpatch.lockfile import lock, recorded, sums
from vlmpatch.lockfile.difference import Difference, compare
from vlmpatch.lockfile.lock import Lock, Locked, Unreadable
from vlmpatch.lockfile.revision import Revisions
from vlmpatch.support import log
from vlmpatch.tools import lock as tool
from vlmpatch.tools.doctor.examination import examine
from vlmpatch.tools.view import ci
from vlmpatch.tools.view.language import Words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SAY = Words("en")
A, B, C = "a" * 12, "b" * 12, "c" * 12


def made(**patches: Locked) -> Lock:
    return Lock("0.2.0", {"torch": "2.13.0"}, {each.id: each for each in patches.values()})


class Stack:
    """A world whose one package is fixed by one patch, and the lock of that."""

    def __init__(self, world: World) -> None:
        self.world, self.path = world, str(world.folder / "vlmpatch.lock")
        world.package("greeter")
        world.distribution("greeter", "1.0")
        self.id = world.patch("greeter", '{ greeter = ">=1,<2.dev0" }')

    def lock(self) -> None:
        assert tool.lock(self.world.catalog(), SAY, self.path) == 0

    def diff(self, view: str = "text", form: str = "", other: str = "") -> int:
        return tool.diff(self.world.catalog(), SAY, self.path, other, view, form)

    def upgrade(self, version: str) -> None:
        (self.world.folder / "greeter-1.0.dist-info" / "METADATA").write_text(f"Version: {version}\n")

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.world.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        os.utime(path, ns=(1, 1))  # the source is read again where its time is another
        sys.modules.pop(f"vlmpatch.patches.fakes.{path.stem}", None)

    @property
    def file(self) -> str:
        return f"patches/fakes/{self.id.replace('-', '_')}.py"


@pytest.fixture
def stack(world: World) -> Stack:
    return Stack(world)


def test_the_python_that_does_not_train_is_named(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    stack.lock()
    assert f"There is no torch in {sys.executable}" in capsys.readouterr().err
    stack.diff()
    assert f"There is no torch in {sys.executable}" in capsys.readouterr().err
    stack.diff(other=stack.path)
    assert capsys.readouterr().err == ""
    stack.world.distribution("torch", "2.13.0")
    stack.lock()
    assert capsys.readouterr().err == ""


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_what_is_written_is_read(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    stack.lock()
    assert said(capsys) == f"Written: {stack.path} (patches: 1, vlmpatch {__version__})"
    found = lock.read(stack.path)
    assert found.packages == {"greeter": "1.0"}
    (patch,) = found.patches.values()
    assert patch.id == stack.id
    assert patch.revision == Revisions(str(stack.world.patches)).of(f"fakes.{stack.id.replace('-', '_')}")
    assert list(patch.shapes) == ["greeter"]
    assert lock.text(found) == Path(stack.path).read_text()
    assert stack.diff() == 0
    assert "the same patches are applied to the same code" in said(capsys)


def test_a_build_of_the_same_release_is_the_same(stack: Stack) -> None:
    stack.lock()
    stack.upgrade("1.0+cu128")
    assert stack.diff() == 0


def test_an_upgrade_that_ends_a_patch(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    stack.lock()
    stack.upgrade("2.1")
    assert stack.diff() == 1
    out = said(capsys)
    assert "patches: 0 added, 1 removed, 0 changed; versions: 1 changed" in out
    assert f"No longer applied {stack.id}: greeter 2.1 is not >=1,<2.dev0" in out


def test_a_patch_that_is_new(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    stack.lock()
    new = stack.world.patch("greeter", '{ greeter = ">=1" }')
    assert stack.diff() == 1
    assert f"Applied from now on {new}: hello (greeter 1.0; will be applied when" in said(capsys)


def test_a_patch_that_has_taken_the_place_of_another(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    new = stack.world.patch("greeter", '{ greeter = ">=1" }', was='["old-id"]')
    stack.lock()
    path = Path(stack.path)
    path.write_text(path.read_text().replace(f'"{new}"', '"old-id"'))
    assert stack.diff() == 1
    assert f"No longer applied old-id: has become '{new}'" in said(capsys)


def test_a_patch_that_has_changed(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    stack.lock()
    stack.edit(stack.file, '"goodbye"', '"farewell"')
    assert stack.diff() == 1
    assert f"Patches that have changed {stack.id}: " in said(capsys)


def test_code_that_has_changed_under_a_patch(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    stack.lock()
    stack.edit("greeter.py", '"hello "', '"hello, "')
    assert stack.diff() == 1
    assert f"is still recognised {stack.id}: greeter" in said(capsys)


def test_what_nobody_looks_at_may_change(stack: Stack) -> None:
    stack.lock()
    stack.edit("greeter.py", "def greet", "def other():\n    pass\n\n\ndef greet")
    stack.edit(stack.file, "def look", "# a comment\ndef look")
    assert stack.diff() == 0


def test_what_is_needed_and_cannot_be_had_is_not_in_it(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.edit("greeter.py", "greet", "salute")
    assert tool.lock(stack.world.catalog(), SAY, stack.path) == 1
    assert "greeter has no greet" in capsys.readouterr().err
    assert lock.read(stack.path).patches == {}


def test_what_is_switched_off_is_not_in_it(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.lock()
    monkeypatch.setenv("VLMPATCH_DISABLE", stack.id)
    assert stack.diff() == 1


def test_the_views(stack: Stack, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stack.lock()
    stack.upgrade("2.1")
    monkeypatch.chdir(stack.world.folder)
    capsys.readouterr()
    assert stack.diff("json") == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["same"]) == (1, False)
    assert [each["kind"] for each in data["differences"]] == ["package", "removed"]
    stack.diff("markdown")
    subject, blank, *body = capsys.readouterr().out.splitlines()
    assert (subject, blank) == (
        f"vlmpatch {__version__} · patches: 0 added, 1 removed, 0 changed; versions: 1 changed",
        "",
    )
    assert "- greeter 1.0 → 2.1" in body
    line = Path(stack.path).read_text().splitlines().index(f'id = "{stack.id}"') + 1
    starts = {
        "github": f"::warning file=vlmpatch.lock,line={line},title=vlmpatch%3A No longer applied::{stack.id}",
        "azure": f"##vso[task.logissue type=warning;sourcepath=vlmpatch.lock;linenumber={line}]vlmpatch: ",
        "plain": f"vlmpatch.lock:{line}:1: warning: vlmpatch: No longer applied: {stack.id}: ",
    }
    for form, start in starts.items():
        assert stack.diff("annotations", form) == 1
        assert capsys.readouterr().out.splitlines()[1].startswith(start)
    stack.diff("annotations", "gitlab")
    report = json.loads(capsys.readouterr().out)
    assert [each["location"]["lines"]["begin"] for each in report] == [6, line]
    assert len({each["fingerprint"] for each in report}) == 2


def test_nothing_to_remark(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    stack.lock()
    capsys.readouterr()
    assert [stack.diff("annotations", form) for form in ci.FORMS] == [0] * len(ci.FORMS)
    gitlab, sarif = capsys.readouterr().out.split("\n", 1)
    assert (json.loads(gitlab), json.loads(sarif)["runs"][0]["results"]) == ([], [])


@given(st.lists(st.text(), min_size=3, max_size=3))
def test_remarks_stay_on_their_line(texts: list[str]) -> None:
    remark = ci.Annotation("warning", texts[0], 1, texts[1], texts[2])
    for form in ("github", "azure"):
        assert len(ci.lines([remark], form).split("\n")) == 1
    assert json.loads(ci.lines([remark], "gitlab"))[0]["description"] == texts[2]
    assert json.loads(ci.lines([remark], "sarif"))["runs"][0]["results"][0]["message"]["text"] == texts[2]


@pytest.mark.parametrize(
    ("environ", "form"),
    [
        ({"GITHUB_ACTIONS": "true"}, "github"),
        ({"GITLAB_CI": "1"}, "gitlab"),
        ({"TF_BUILD": "True"}, "azure"),
        ({}, "plain"),
    ],
)
def test_the_service_is_known_by_its_environment(environ: dict[str, str], form: str) -> None:
    assert ci.service(environ) == form


def test_two_locks(stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, held in (("one", made(x=Locked("x", A, {"m": B}))), ("two", made(y=Locked("y", A, {"m": B})))):
        (tmp_path / name).write_text(lock.text(held))
    stack.path = str(tmp_path / "one")
    assert stack.diff(other=str(tmp_path / "two")) == 1
    assert "y: this vlmpatch has no such patch" in said(capsys)
    assert stack.diff(other=str(tmp_path / "none")) == 2


def test_what_waits_for_a_script_is_told_apart() -> None:
    before = made(x=Locked("x", A, {"trainer": lock.ABSENT}))
    assert compare(before, made()) == [Difference("removed", "x", A, "", waits=True)]
    assert compare(made(), before) == [Difference("added", "x", "", A, waits=True)]
    assert compare(before, made(x=Locked("x", A, {"trainer": C}))) == []
    assert compare(before, made(x=Locked("x", B, {"trainer": C}))) == [Difference("revised", "x", A, B)]


BAD = {
    "": "vlmpatch.lock, schema: is missing",
    "schema = 2": "schema: is 2, and this vlmpatch reads 1",
    "schema = 1\nvlmpatch = 3": "vlmpatch.lock, vlmpatch: cannot be 3",
    "schema = 1\nvlmpatch = '1'": "packages: is missing",
    "schema = 1\nvlmpatch = '1'\n[packages]\ntorch = 2": "packages, torch: cannot be 2",
    "schema = 1\nvlmpatch = '1'\npackages = []": "packages: is not a table",
    "schema = 1\npatch = 3": "patch: is not a list of tables",
    "schema = 1\npatch = [3]": "patch number 1: is not a table",
    "schema = 1\n[[patch]]\nid = 'X'": "patch number 1, id: cannot be 'X'",
    "schema = 1\n[[patch]]\nid = 'x'": "patch number 1 (x), revision: is missing",
    f"schema = 1\n[[patch]]\nid = 'x'\nrevision = '{A}'\nshapes = {{ m = 'y' }}": "shapes, m: cannot be 'y'",
    f"schema = 1\n[[patch]]\nid = 'x'\nrevision = '{A}'\nshape = 1": "shape: unknown key; known: id, rev",
    "schema = 1\ncolour = 1": "colour: unknown key",
    "schema = ": "is not valid TOML",
    "a" * 100: "is not valid TOML",
}


@pytest.mark.parametrize(("text", "says"), BAD.items(), ids=range(len(BAD)))
def test_a_broken_lock_is_named_with_its_key_and_a_remedy(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "vlmpatch.lock"
    path.write_text(text)
    with pytest.raises(Unreadable) as caught:
        lock.read(str(path))
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith("Write it again: python -m vlmpatch lock")


WORDS = st.text(st.characters(exclude_categories=("Z", "Cs", "Cc")), min_size=1, max_size=40)
SHAPES = st.dictionaries(WORDS, st.sampled_from([A, lock.ABSENT, lock.ANY]), max_size=3)


@given(
    WORDS.filter(lambda text: not text.isspace()),
    st.dictionaries(WORDS, WORDS),
    st.dictionaries(st.from_regex(r"[a-z0-9/-]{1,20}", fullmatch=True), SHAPES),
    st.dictionaries(WORDS, st.just("acme-fixes 1.0")),
)
def test_whatever_is_written_is_read(
    version: str, packages: dict[str, str], patches: dict[str, dict[str, str]], sets: dict[str, str]
) -> None:
    held = Lock(version, packages, {id_: Locked(id_, A, shapes) for id_, shapes in patches.items()}, sets)
    assert lock.parse(tomllib.loads(lock.text(held)), "x") == held


def test_a_lock_twice_the_same_patch(tmp_path: Path) -> None:
    text = lock.text(made(x=Locked("x", A, {"m": B})))
    (tmp_path / "l").write_text(text + text[text.index("[[patch]]") :])
    with pytest.raises(Unreadable, match="appears twice"):
        lock.read(str(tmp_path / "l"))


@given(st.binary())
def test_any_bytes_are_a_lock_or_said_to_be_none(data: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with pytest.raises(Unreadable):
            lock.read(file.name)


def test_what_never_ends_is_no_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Unreadable, match="is no regular file"):
        lock.read(str(tmp_path / "fifo"))


def test_a_lock_that_cannot_be_written_is_said(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.lock(stack.world.catalog(), SAY, str(stack.world.folder / "no" / "lock")) == 2
    assert "no/lock: cannot be written (No such file" in capsys.readouterr().err


# In a training process.


def greet(stack: Stack) -> str:
    return str(importlib.import_module("greeter").greet("you"))


def test_a_run_as_it_was_locked_is_silent(stack: Stack, warnings: list[str]) -> None:
    stack.lock()
    stack.world.engine(VLMPATCH_LOCK=stack.path, VLMPATCH_STRICT="1")
    assert greet(stack) == "goodbye you"
    assert warnings == []


def test_a_run_that_differs_warns_once_and_goes_on(stack: Stack, warnings: list[str]) -> None:
    stack.lock()
    stack.edit(stack.file, '"goodbye"', '"farewell"')
    stack.world.package("other")
    new = stack.world.patch("other", '{ greeter = ">=1" }')
    stack.world.engine(VLMPATCH_LOCK=stack.path)
    assert greet(stack) == "farewell you"
    importlib.import_module("other")
    (text,) = warnings
    assert f"has: applied and not in it: {new}; changed patches: {stack.id}. `python -m vlmpatch" in text
    assert "The run goes on; VLMPATCH_STRICT=1 refuses" in text


def test_a_run_that_differs_is_refused_where_that_is_asked_for(stack: Stack, warnings: list[str]) -> None:
    stack.lock()
    stack.upgrade("1.1")
    stack.world.engine(VLMPATCH_LOCK=stack.path, VLMPATCH_STRICT="1")
    for _ in range(2):  # a host that catches the first is refused again
        sys.modules.pop("greeter", None)
        with pytest.raises(engine.PatchError, match=r"other versions: greeter 1\.1 for 1\.0"):
            greet(stack)


@pytest.mark.parametrize(("strict", "severity"), [("", "warning"), ("1", "error")])
def test_doctor_compares_before_a_training_does(
    stack: Stack, strict: str, severity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(path: str) -> list[tuple[str, str, str]]:
        monkeypatch.setenv("VLMPATCH_LOCK", path)
        monkeypatch.setenv("VLMPATCH_STRICT", strict)
        found = examine(stack.world.catalog()).findings
        return [(each.severity, each.evidence, each.fix) for each in found if each.code == "D12"]

    stack.lock()
    assert told(stack.path) == []
    stack.edit(stack.file, '"goodbye"', '"farewell"')
    fix = f"python -m vlmpatch lock --diff --file {stack.path}"
    assert told(stack.path) == [(severity, f"changed patches: {stack.id}", fix)]
    ((found, evidence, fix),) = told("/no/such/lock")
    assert (found, "/no/such/lock: cannot be read" in evidence, fix) == (severity, True, "")


@pytest.mark.parametrize("strict", ["", "1"])
def test_a_lock_that_is_not_there(stack: Stack, warnings: list[str], strict: str) -> None:
    stack.world.engine(VLMPATCH_LOCK=stack.path, VLMPATCH_STRICT=strict)
    if strict:
        with pytest.raises(engine.PatchError, match="cannot be read"):
            greet(stack)
    else:
        assert greet(stack) == "goodbye you"
        assert len(warnings) == 1


def test_what_goes_wrong_in_comparing_is_a_warning(
    stack: Stack, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(locked, "differences", broken)
    stack.world.engine(VLMPATCH_LOCK=stack.path)
    assert greet(stack) == "goodbye you"
    assert [text for text in warnings if "could not be compared: RuntimeError('broken')" in text] == warnings


def test_a_process_that_imports_no_target_compares_nothing(stack: Stack, warnings: list[str]) -> None:
    stack.world.engine(VLMPATCH_LOCK="/no/such/lock", VLMPATCH_STRICT="1")
    assert warnings == []


def test_require(stack: Stack) -> None:
    stack.lock()
    running = stack.world.engine()
    running.require([], stack.path)
    greet(stack)
    running.require([stack.id], stack.path)
    running.undo([stack.id])
    with pytest.raises(engine.PatchError, match=f"in it and not applied: {stack.id}"):
        running.require([], stack.path)
    with pytest.raises(engine.PatchError, match="cannot be read"):
        running.require([], str(stack.world.folder / "none"))


def test_a_patch_that_failed_is_not_applied(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.lock()
    monkeypatch.setattr(log, "warn", lambda text, own=False: None)
    stack.edit(stack.file, "    patch.wrap", '    raise ValueError("broken")\n    patch.wrap')
    stack.lock()
    running = stack.world.engine()
    assert greet(stack) == "hello you"
    with pytest.raises(engine.PatchError, match="in it and not applied"):
        running.require([], stack.path)


def test_a_script_beside_which_no_lock_was_made(world: World, tmp_path: Path) -> None:
    """Its modules may be another's of the same name: they are no difference."""
    world.distribution("greeter", "1.0")
    world.patch("trainer_of_ours", '{ greeter = ">=1" }')
    path = str(tmp_path / "vlmpatch.lock")
    assert tool.lock(world.catalog(), SAY, path) == 0
    world.package("trainer_of_ours", 'def greet(who):\n    return "goodbye"\n')
    world.engine().require([], path)


def test_the_environment_names_a_file() -> None:
    assert environment.read({"VLMPATCH_LOCK": " a.lock "}, ()).lock == "a.lock"


# What a wheel brings.


@pytest.fixture
def packaged(world: World) -> Path:
    """A folder of patches with the record that a wheel has of it."""
    (world.patches / "fakes" / "helper.py").write_text("VALUE = 1\n")
    (world.patches / "fakes" / "one.py").write_text(f"{PATCH}\nfrom .helper import VALUE\n")
    (world.patches / "fakes" / "two.py").write_text(PATCH)
    (world.folder / recorded.FILE).write_text(recorded.dumps(str(world.patches), ["fakes.one", "fakes.two"]))
    return world.patches


def test_a_recorded_revision_is_not_computed(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revisions = Revisions(str(packaged)).of("fakes.one")
    monkeypatch.setattr(Revisions, "of", None)
    assert recorded.Installed(str(packaged)).of("fakes.one") == revisions


def test_a_file_that_was_changed_is_looked_at(packaged: Path) -> None:
    before = {name: recorded.Installed(str(packaged)).of(name) for name in ("fakes.one", "fakes.two")}
    (packaged / "fakes" / "helper.py").write_text("VALUE = 2\n")
    after = {name: recorded.Installed(str(packaged)).of(name) for name in before}
    assert after["fakes.one"] != before["fakes.one"]
    assert after["fakes.two"] == before["fakes.two"]
    assert after["fakes.one"] == Revisions(str(packaged)).of("fakes.one")


@pytest.mark.parametrize(
    "record", ["", "[]", "{}", '{"schema": 1}', '{"schema": 1, "files": 1, "patches": 1}']
)
def test_a_record_that_is_broken_is_none(packaged: Path, record: str) -> None:
    (packaged.parent / recorded.FILE).write_text(record)
    assert recorded.Installed(str(packaged)).of("fakes.one") == Revisions(str(packaged)).of("fakes.one")


def test_a_patch_that_is_gone_has_no_revision(packaged: Path) -> None:
    (packaged / "fakes" / "helper.py").unlink()
    assert recorded.Installed(str(packaged)).of("fakes.one") == ""


def test_one_sum_over_all(packaged: Path) -> None:
    before = sums.sum_of(str(packaged))
    (packaged / "fakes" / "notes.txt").write_text("x")
    assert sums.sum_of(str(packaged)) == before
    (packaged / "fakes" / "helper.py").write_text("VALUE = 2\n")
    assert sums.sum_of(str(packaged)) != before
