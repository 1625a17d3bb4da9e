"""Patch sets of others: by name only, judged and taken back as ours are, and never in silence over ours."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATCH, World
from vlmpatch.catalog import environment, sets
from vlmpatch.catalog.model import Catalog, State
from vlmpatch.engine.engine import Engine, PatchError
from vlmpatch.lockfile.difference import compare
from vlmpatch.tools import lock, new
from vlmpatch.tools.doctor import examination, views
from vlmpatch.tools.explain import explain, pages
from vlmpatch.tools.view.language import Words
from vlmpatch.watch import ranks

CHECKOUT = Path(__file__).resolve().parents[2]
SAY = Words("en")
ENTRY = """
[[patch]]
id = "{id}"
failures = {failures}
severity = "crash"
summary = "theirs"
targets = ["{target}"]
requires = {{ greeter = ">=1,<2.dev0" }}
upstream = ["https://example.org"]
"""
FAILURE = """
id = "F1"
order = 1
title = "It says hello"
see = "hello"
where = "everywhere"
cause = "It does."
symptoms = [{ all = ["it said hello once more"] }]
"""
SETS_DEFAULT = """
from vlmpatch.api import Code, Patch

def look(code):
    return None

def apply(patch, module):
    patch.set_default(module.greet, "who", "{who}")
"""


class Theirs:
    """A package on the path with a patch set, and an installed world it is for."""

    def __init__(self, world: World, name: str = "acme", package: str = "acme_patches") -> None:
        self.world, self.name, self.home = world, name, world.folder / package
        (self.home / "patches" / "fakes").mkdir(parents=True)
        for folder in (self.home, self.home / "patches", self.home / "patches" / "fakes"):
            (folder / "__init__.py").write_text("")
        (self.home / "compat.toml").write_text("schema = 1\n")
        self.point(f"{name}-fixes", package)

    def point(self, distribution: str, value: str, version: str = "1.0") -> Path:
        info = self.world.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{sets.GROUP}]\n{self.name} = {value}\n")
        importlib.invalidate_caches()
        return info

    def patch(
        self, id_: str, target: str = "greeter", source: str = PATCH, failures: str = '["F4"]', also: str = ""
    ) -> str:
        with (self.home / "compat.toml").open("a") as file:
            file.write(ENTRY.format(id=id_, target=target, failures=failures) + also)
        (self.home / "patches" / "fakes" / f"{id_.replace('-', '_')}.py").write_text(source)
        importlib.invalidate_caches()
        return f"{self.name}/{id_}"

    def catalog(self, *names: str) -> Catalog:
        return sets.add(self.world.catalog(), names or [self.name], "VLMPATCH_SETS")

    def engine(self, *names: str, **environ: str) -> Engine:
        known = self.catalog(*names)
        engine = Engine(known, environment.read(environ, known.entries, known.renamed))
        self.world.engines.append(engine)
        engine.arm()
        return engine


@pytest.fixture
def theirs(world: World) -> Theirs:
    world.package("greeter", 'def greet(who="you"):\n    return "hello " + who\n')
    world.distribution("greeter", "1.0")
    return Theirs(world)


def greeter() -> Any:
    return importlib.import_module("greeter")


def test_to_be_installed_switches_nothing_on(theirs: Theirs) -> None:
    id_ = theirs.patch("polite")
    running = theirs.world.engine()
    assert greeter().greet() == "hello you"
    assert id_ not in running.status()
    assert "acme_patches" not in sys.modules


def test_a_former_id_has_the_name_of_the_set_too(theirs: Theirs, warnings: list[str]) -> None:
    id_ = theirs.patch("polite", also='was = ["civil"]\n')
    running = theirs.engine(VLMPATCH_DISABLE="acme/civil")
    assert greeter().greet() == "hello you"
    with pytest.raises(PatchError, match=f"patch {id_} is off"):
        running.require(["acme/civil"])
    with pytest.raises(PatchError, match="'civil' is no patch id"):
        running.require(["civil"])
    assert "'acme/civil' has become 'acme/polite'" in warnings[0]


def test_named_it_is_applied_reported_and_taken_back(theirs: Theirs, warnings: list[str]) -> None:
    id_ = theirs.patch("polite")
    running = theirs.engine()
    assert "acme_patches" not in sys.modules  # before its target is there
    assert greeter().greet() == "goodbye you"
    status = running.status()[id_]
    assert (status.state, status.set, id_) == (State.APPLIED, "acme", "acme/polite")
    with running.disabled([id_]):
        assert greeter().greet() == "hello you"
    running.require([id_])
    assert running.undo([id_]) == []
    assert greeter().greet() == "hello you"
    running.redo([id_])
    assert greeter().greet() == "goodbye you"
    assert warnings == []


def test_used_from_a_script_after_its_target(theirs: Theirs) -> None:
    id_ = theirs.patch("polite")
    running = theirs.world.engine()
    assert greeter().greet() == "hello you"
    running.use(["acme"])
    running.use(["acme"])
    assert greeter().greet() == "goodbye you"
    assert running.status()[id_].state is State.APPLIED


def test_what_the_environment_switches_off_stays_off(
    theirs: Theirs, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = theirs.patch("polite")
    assert theirs.engine(VLMPATCH_DISABLE=id_).status()[id_].state is State.OFF
    monkeypatch.setenv("VLMPATCH_DISABLE", id_)
    running = theirs.world.engine(VLMPATCH_DISABLE=id_)
    running.use(["acme"])
    assert running.status()[id_].state is State.OFF
    assert greeter().greet() == "hello you"
    assert warnings == []


def test_the_same_gate(theirs: Theirs, world: World) -> None:
    id_ = theirs.patch("polite")
    (world.folder / "greeter-1.0.dist-info" / "METADATA").write_text("Version: 2.0\n")
    assert theirs.engine().status()[id_].reason == "greeter 2.0 is not >=1,<2.dev0"


def test_the_same_invariants(theirs: Theirs, warnings: list[str]) -> None:
    """A wrapper that does not take every call of its target is refused, and rolled back."""
    source = PATCH.replace("lambda f, *args, **kw: f(*args, **kw)", "lambda f, name: f(name)")
    id_ = theirs.patch("narrow", source=source)
    running = theirs.engine()
    assert greeter().greet() == "hello you"
    assert running.status()[id_].state is State.FAILED
    assert any(id_ in text for text in warnings)


def broken_name(theirs: Theirs) -> str:
    theirs.name = "acm"
    return "no patch set 'acm'. Did you mean 'acme'? Install the package that brings it; installed: acme"


def two_packages(theirs: Theirs) -> str:
    theirs.point("other-fixes", "other_patches")
    return "two packages have a patch set 'acme': acme-fixes 1.0 and other-fixes 1.0. Uninstall one of them"


def no_catalog(theirs: Theirs) -> str:
    (theirs.home / "compat.toml").unlink()
    return "the entry point of patch set 'acme' is 'acme_patches', where no compat.toml lies. It names the"


def an_attribute(theirs: Theirs) -> str:
    for path in theirs.world.folder.glob("acme_fixes*/entry_points.txt"):
        path.write_text(f"[{sets.GROUP}]\nacme = acme_patches:patches\n")
    return "the entry point of patch set 'acme' is 'acme_patches:patches', where no compat.toml lies"


def broken_catalog(theirs: Theirs) -> str:
    (theirs.home / "compat.toml").write_text("schema = 7\n")
    return "acme_patches/compat.toml, schema: schema is 7, this vlmpatch reads schema 1"


@pytest.mark.parametrize("spoil", [broken_name, two_packages, no_catalog, an_attribute, broken_catalog])
def test_what_is_wrong_is_named_and_the_rest_stands(
    theirs: Theirs, warnings: list[str], spoil: Callable[[Theirs], str]
) -> None:
    own = theirs.world.patch("greeter", '{ greeter = ">=1" }')
    said = spoil(theirs)
    running = theirs.engine()
    assert [text for text in warnings if said in text] == warnings != []
    assert greeter().greet() == "goodbye you"
    assert running.status()[own].state is State.APPLIED
    with pytest.raises(PatchError) as refused:
        theirs.world.engine().use([theirs.name])
    assert said in str(refused.value)


def test_a_patch_that_vlmpatch_has_is_an_error_that_names_both(theirs: Theirs, warnings: list[str]) -> None:
    own = theirs.world.patch("greeter", '{ greeter = ">=1" }')
    id_ = theirs.patch(own, source=PATCH.replace("goodbye", "farewell"))
    running = theirs.engine()
    assert greeter().greet() == "goodbye you"
    said = f"both vlmpatch and patch set acme (acme-fixes 1.0) have a patch {own}"
    status = running.status()[id_]
    assert (status.state, said in status.reason) == (State.CONFLICT, True)
    assert [text for text in warnings if said in text and id_ in text] == warnings != []
    with pytest.raises(PatchError, match="is conflict: both vlmpatch and patch set acme"):
        running.require([id_])
    running.undo([])
    with pytest.raises(PatchError, match="both vlmpatch and patch set acme"):
        theirs.world.engine().use(["acme"])


def test_one_place_is_not_set_twice(theirs: Theirs, warnings: list[str]) -> None:
    own = theirs.world.patch("greeter", '{ greeter = ">=1" }', SETS_DEFAULT.format(who="we"))
    id_ = theirs.patch("other-default", source=SETS_DEFAULT.format(who="they"))
    running = theirs.engine()
    assert greeter().greet() == "hello we"
    status = running.status()[id_]
    assert (status.state, own in status.reason) == (State.CONFLICT, True)
    assert [text for text in warnings if own in text and id_ in text] == warnings != []
    assert running.status()[own].state is State.APPLIED


@pytest.mark.parametrize("text", ["[console_scripts]\nno equals sign\n", "no section = x\n", "\0"])
def test_a_neighbour_whose_metadata_is_broken(theirs: Theirs, warnings: list[str], text: str) -> None:
    (theirs.point("broken", "x") / "entry_points.txt").write_text(text)
    theirs.patch("polite")
    theirs.engine()
    assert greeter().greet() == "goodbye you"
    assert warnings == []


def test_what_nobody_thought_of_is_a_warning(
    theirs: Theirs, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> None:
        raise ValueError("no spec")

    monkeypatch.setattr(importlib.util, "find_spec", broken)
    theirs.engine()
    (text,) = warnings
    assert "VLMPATCH_SETS: patch set 'acme' cannot be read: ValueError('no spec'). Reinstall" in text


def test_layers_of_both_lie_on_each_other(theirs: Theirs) -> None:
    own = theirs.world.patch("greeter", '{ greeter = ">=1" }')
    theirs.patch("loud", source=PATCH.replace('.replace("hello", "goodbye")', '.upper() + "!"'))
    running = theirs.engine()
    assert greeter().greet() == "GOODBYE YOU!"
    running.undo([own])
    assert greeter().greet() == "HELLO YOU!"


def test_in_the_midst_of_a_run_a_place_that_is_taken_is_left(theirs: Theirs, warnings: list[str]) -> None:
    replaces = (
        "def look(code):\n    return None\n\ndef apply(patch, module):\n    patch.replace(module, 'x', 1)\n"
    )
    own = theirs.world.patch("greeter", '{ greeter = ">=1" }', replaces)
    late = """
def look(code):
    return None

def apply(patch, module):
    def later(original, /, *args, **kwargs):
        patch.replace(module, "x", 2)
        with patch.swapped(module, "x", 3):
            return original(*args, **kwargs) + str(module.x)

    patch.wrap(module, "greet", later)
"""
    id_ = theirs.patch("late", source=late)
    theirs.engine()
    assert greeter().greet() == "hello you1"
    assert greeter().x == 1
    assert [text for text in warnings if own in text and id_ in text] == warnings
    assert len(warnings) == 2


def test_it_is_shown_as_foreign(
    theirs: Theirs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("VLMPATCH_SETS", raising=False)
    (theirs.home / "failures").mkdir()
    (theirs.home / "failures" / "F01.toml").write_text(FAILURE)
    id_ = theirs.patch("polite", failures='["F1", "F4"]')
    known = theirs.catalog()
    assert known.entries[id_].failures == ("acme/F1", "F4")
    pages.patch_page(known.entries[id_], known, SAY).show(sys.stdout)
    assert "Not vlmpatch's own: of the patch set acme (acme-fixes 1.0)." in capsys.readouterr().out
    log = tmp_path / "log"
    log.write_text("RuntimeError: it said hello once more\n")
    assert explain.explain([str(log)], known, SAY) == 0
    assert "acme/F1 · It says hello" in capsys.readouterr().out
    found = examination.examine(known, say=SAY)
    assert [each["name"] for each in views.data(found)["sets"]] == ["acme"]
    assert re.search(r"^  acme +acme-fixes 1\.0,", views.page(found, SAY).text(), re.M)
    unused = examination.examine(theirs.world.catalog(), say=SAY)
    assert [each.code for each in unused.findings if each.evidence == "acme"] == ["D11"]
    assert "acme-fixes" in views.markdown(found, SAY)
    without, _ = lock.here(theirs.world.catalog())
    held, _ = lock.here(known)
    assert held.sets == {"acme": "acme-fixes 1.0"}
    assert held.patches[id_].revision
    assert [each.kind for each in compare(without, held)] == ["package", "set", "added"]


def test_ranks_compare_it(theirs: Theirs) -> None:
    theirs.patch("polite")
    before = ranks.facts(theirs.catalog(), list)
    (theirs.home / "patches" / "fakes" / "polite.py").write_text(PATCH + "\n")
    after = ranks.facts(theirs.catalog(), list)
    assert before["patch set acme"].startswith("1.0 (")
    assert {name for name in before if before[name] != after[name]} == {"patch set acme"}


def test_the_list_says_whose(theirs: Theirs, capsys: pytest.CaptureFixture[str]) -> None:
    from vlmpatch.tools.listing import listing

    theirs.patch("polite")
    assert listing(theirs.catalog(), SAY, True) == 0
    assert [each["set"] for each in json.loads(capsys.readouterr().out)["patches"]] == ["acme"]


# Laid out in a folder of one's own.


def run_tests(folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": ":".join(map(str, [*paths, CHECKOUT])), "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)


def install(folder: Path, target: Path) -> Path:
    source = shutil.copytree(folder, target / "source", ignore=shutil.ignore_patterns("__pycache__", "dist"))
    words = ["-m", "uv", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([sys.executable, *words, "--target", target / "site", source], check=True)
    return target / "site"


def test_the_example_keeps_what_it_promises(tmp_path: Path) -> None:
    example = CHECKOUT / "examples" / "patch-set"
    done = run_tests(example, install(example, tmp_path))
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout + done.stderr


FILLED = {
    "acme_patches/compat.toml": {
        "severity": '"crash"',
        "summary": '"It says hello, and should not."',
        "targets": '["greeter"]',
        "requires": '{ greeter = ">=1" }',
        "upstream": '["https://example.org"]',
    },
    "acme_patches/failures/F01.toml": {
        "title": '"It says hello"',
        "see": '"hello"',
        "where": '"everywhere"',
        "cause": '"It does."',
        "advice": '["pip install greeter==2"]',
        "symptoms": '[{ all = ["hello"] }]',
    },
}


def fill_in(root: Path) -> None:
    for name, answers in FILLED.items():
        lines = (root / name).read_text().splitlines()
        for number, line in enumerate(lines):
            key = line.partition(" = ")[0]
            lines[number] = f"{key} = {answers[key]}" if "FILL IN" in line else line
        (root / name).write_text("\n".join(lines))
    (root / "acme_patches" / "patches" / "greeter" / "polite.py").write_text(PATCH)
    test = root / "tests" / "test_polite.py"
    text = test.read_text().replace('"FILL IN: the module that is fixed"', '"greeter"')
    text = text.replace(
        "bool(importlib.import_module(TARGET))", 'importlib.import_module(TARGET).greet("") == "goodbye "'
    )
    test.write_text(text.replace("FILL IN: ", ""))


def test_what_is_laid_out_fails_until_it_is_filled_in(tmp_path: Path) -> None:
    root = tmp_path / "acme"
    root.mkdir()
    written = new.lay_out(root, "polite", "greeter", "", "new")
    assert {str(path.relative_to(root)) for path in written} >= {
        "pyproject.toml",
        *FILLED,
        "tests/test_polite.py",
    }
    done = run_tests(root, install(root, tmp_path / "blank"))
    assert (done.returncode, "2 failed" in done.stdout) == (1, True), done.stdout
    fill_in(root)
    site = install(root, tmp_path / "filled")
    (site / "greeter.py").write_text('__version__ = "1.0"\n\n\ndef greet(who):\n    return "hello " + who\n')
    done = run_tests(root, site)
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout


def test_a_second_patch_joins_the_first(tmp_path: Path) -> None:
    new.lay_out(tmp_path, "one", "fakelib", "acme", "new")
    before = (tmp_path / "acme_patches" / "compat.toml").read_text()
    new.lay_out(tmp_path, "two", "fakelib", "", "new")
    new.lay_out(tmp_path, "three", "other_lib", "", "f1")
    after = (tmp_path / "acme_patches" / "compat.toml").read_text()
    assert after.startswith(before.rstrip())
    assert after.count("[[patch]]") == 3
    assert sorted(path.name for path in (tmp_path / "acme_patches" / "failures").iterdir()) == [
        "F01.toml",
        "F02.toml",
    ]


@pytest.mark.parametrize(
    ("id_", "upstream", "name", "failure", "says"),
    [
        ("Bad_Id", "lib", "acme", "new", "'Bad_Id' is no such name; write it as rope-cache"),
        ("good", "../lib", "acme", "new", "'../lib' is no such name; write it as acme_model"),
        ("good", "lib", "Acme!", "new", "'Acme!' is no name for a patch set; --set acme-vl gives it one"),
        ("good", "lib", "acme", "F999", "there is no failure F999"),
        ("zero3-recompute-release", "lib", "acme", "new", "is taken: vlmpatch has a patch of it"),
    ],
)
def test_bad_input_is_refused_and_writes_nothing(
    id_: str, upstream: str, name: str, failure: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(new.Refused) as refused:
        new.lay_out(tmp_path, id_, upstream, name, failure)
    assert says in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["[project]\nname = 'x'\n", "[project", "project = 3\n"])
def test_a_project_that_is_no_patch_set_is_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(new.Refused, match=r"pyproject\.toml"):
        new.lay_out(tmp_path, "good", "lib", "acme", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


def test_in_this_repository_another_command_lays_it_out() -> None:
    with pytest.raises(new.Refused, match=r"python -m tests\.new"):
        new.lay_out(CHECKOUT, "good", "lib", "acme", "new")


def test_what_a_set_lacks_is_listed(theirs: Theirs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "known", lambda environ: theirs.world.catalog())
    theirs.patch("polite", failures='["F99"]', source=f"# FILL IN: all of it\n{PATCH}")
    (theirs.home / "cases").mkdir()
    (theirs.home / "cases" / "fakes.toml").write_text('[[case]]\nid = "a"\npatch = "nosuch"\n')
    blank, case, unknown = new.lacks("acme")
    assert blank == "acme_patches/patches/fakes/polite.py:1: # FILL IN: all of it"
    assert "acme_patches/cases/fakes.toml, case 'a'" in case
    assert "patch 'acme/polite', failures: there is no failure F99. Describe it in failures/" in unknown
    assert new.lacks("nosuch")[0].startswith("lacks: there is no patch set 'nosuch'")
