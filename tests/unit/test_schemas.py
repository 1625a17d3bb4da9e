"""What the tools print with ``--json`` is what ``vlmpatch/schemas/`` says, whatever they are asked about."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError

from tests.conftest import World
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Catalog
from vlmpatch.catalog.read import read
from vlmpatch.lockfile.difference import KINDS, Difference
from vlmpatch.lockfile.lock import Lock
from vlmpatch.tools import cases, cli, codes, listing, lock, retire, schemas
from vlmpatch.tools.doctor import examination, views
from vlmpatch.tools.explain import answer_page, answers, failures, pages
from vlmpatch.tools.verify import elsewhere, table
from vlmpatch.tools.verify.ending import Ending, Verdict
from vlmpatch.tools.verify.table import Outcome
from vlmpatch.tools.view.language import LANGUAGES, Words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
LAUNCHES = tomllib.loads((HERE / "launches.toml").read_text(encoding="utf-8"))["launch"]
LOGS = sorted((HERE.parent / "logs").glob("*.log"))
KNOWN = read(default_path())
CASES = cases.read(KNOWN).known


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "properties" in schema and schema.get("type") == "object":
            yield schema
        for each in schema.values():
            yield from objects(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from objects(each)


def strict(schema: Any) -> Any:
    """Refuses keys that ``schema`` does not name: a reader's must let them pass, what is printed has none."""
    for each in objects(schema):
        each.setdefault("additionalProperties", False)
    return schema


CHECKS = {name: Draft202012Validator(strict(json.loads(schemas.text(name)))) for name in schemas.NAMES}


def check(name: str, data: Any) -> None:
    """As it is printed: what JSON does not have (a tuple, a key that is a number) is not in the data."""
    CHECKS[name].validate(json.loads(json.dumps(data)))


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", schemas.NAMES)
def test_a_schema_is_one_and_lets_a_new_key_pass(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", name]) == 0
    schema = printed(capsys)
    Draft202012Validator.check_schema(schema)
    assert all(each.get("additionalProperties") is not False for each in objects(schema))
    assert all(each["required"] == list(each["properties"]) for each in objects(schema))


def test_every_command_that_prints_json_has_a_schema_and_a_page() -> None:
    parser = cli._parser(Words("en"))
    (verbs,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    with_json = {verb for verb, made in verbs.choices.items() if "--json" in made._option_string_actions}
    assert with_json == set(schemas.NAMES)
    files = {path.name for path in Path(schemas.__file__).parents[1].glob("schemas/*")}
    assert files == {f"{name}.schema.json" for name in schemas.NAMES}
    for page in ("docs/json.md", "docs/zh-CN/json.md"):
        text = (HERE.parents[1] / page).read_text("utf-8")
        assert all(f"`{name} --" in text for name in schemas.NAMES)


@pytest.mark.parametrize("name", schemas.NAMES)
def test_a_schema_refuses(name: str) -> None:
    wrong_ones: list[Any] = [{}, {"schema": 2}, [], {"schema": 1, "about": "log"}, None]
    for wrong in wrong_ones:
        with pytest.raises(ValidationError):
            check(name, wrong)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("launch", range(len(LAUNCHES)))
def test_doctor_of_a_launch(
    launch: int, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in LAUNCHES[launch].get("files", {}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    asked = examination.Asked(command=LAUNCHES[launch]["command"])
    check("doctor", views.data(examination.examine(KNOWN, asked, Words(language))))


def test_doctor_of_all_states(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLMPATCH_LGO", "info")
    monkeypatch.setenv("MASTER_PORT", "1")
    world.distribution("fakelib", "1.5")
    world.distribution("torch", None)
    package = world.package("target")
    off = world.patch(package, '{ fakelib = ">=1" }')
    monkeypatch.setenv("VLMPATCH_DISABLE", off)
    world.patch(package, '{ fakelib = ">=1" }')
    world.patch(package, '{ fakelib = ">=2" }')
    world.patch(world.package("changed", "x = 1\n"), '{ fakelib = ">=1" }')
    world.patch(package, '{ fakelib = ">=1" }', "def look(code):\n    return 1 / 0\n")
    world.patch(package, '{ fakelib = "one" }')
    model = world.folder / "config.json"
    model.write_text('{"model_type": "x", "auto_map": {}}')
    asked = examination.Asked(model=str(model), ds_config=str(world.folder / "none.json"))
    data = views.data(examination.examine(world.catalog(), asked, Words("en")))
    assert {"armed", "not needed", "off", "conflict", "failed"} <= {each["state"] for each in data["patches"]}
    check("doctor", data)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_explain_of_a_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["explain", str(log), "--json"])
    check("explain", printed(capsys))


def test_explain_of_what_a_person_describes() -> None:
    text = "训练 Qwen2.5-VL 时卡住不动，zero3，有的 batch 没有图片"
    given = answers.answer(io.BytesIO(text.encode()), KNOWN, Words("zh"), None)
    data = answer_page.data(given, Words("zh"))
    assert data["kind"] == "told"
    check("explain", data)


@given(st.binary(max_size=200))
def test_explain_of_any_bytes(data: bytes) -> None:
    given = answers.answer(io.BytesIO(data), KNOWN, Words("en"), None)
    check("explain", answer_page.data(given, Words("zh")))


@pytest.mark.parametrize("language", LANGUAGES)
def test_explain_of_everything_that_has_a_name(language: str) -> None:
    named = [*KNOWN.entries, *failures.read(KNOWN.path).known, *codes.read()]
    for name in named:
        known = pages.called(name, KNOWN)
        assert known is not None
        data = pages.data(known, KNOWN, Words(language))
        assert data["id"] == name
        check("explain", data)


def test_explain_of_several_is_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "F3", "L05", str(LOGS[0]), "--json"]) == 0
    several = printed(capsys)
    assert [each["about"] for each in several] == ["failure", "code", "log"]
    check("explain", several)
    assert cli.main(["explain", "vision-input-grads", "--json"]) == 0
    assert printed(capsys)["about"] == "patch"


def test_what_is_printed_has_no_key_that_the_schema_does_not_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["retire", "--json"]) == 0
    data = {**printed(capsys), "new": 1}
    Draft202012Validator(json.loads(schemas.text("retire"))).validate(data)
    with pytest.raises(ValidationError, match="'new' was unexpected"):
        check("retire", data)


def test_list_and_retire(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("list", "retire"):
        assert cli.main([name, "--json"]) == 0
        check(name, printed(capsys))
    world.distribution("fakelib", "1.5")
    target = world.package("target")
    world.patch(target, '{ fakelib = ">=1,<1.7.2.dev0" }')
    world.patch(target, '{ fakelib = ">=1" }')
    world.patch(target, '{ fakelib = ">=2" }')
    data = retire.data(world.catalog())
    assert all(data[key] for key in ("upgrades", "unended", "spare"))
    check("retire", data)
    (world.folder / "compat.toml").write_text("schema = 1\n[[patch]]\nid = 3\n")
    broken = read(str(world.folder / "compat.toml"))
    assert broken.problems
    check("list", listing.data(broken))


OUTCOMES = ("right", "error", "missing", "ranks", "difference", "none")
ENDINGS = st.builds(
    Ending,
    st.sampled_from(OUTCOMES),
    st.text(max_size=9),
    st.dictionaries(st.sampled_from(["seconds", "calls", "elements", "total"]), st.integers(1, 9)),
)


@given(st.lists(st.tuples(ENDINGS, ENDINGS), max_size=3), st.sampled_from(["cpu", "cuda"]))
def test_verify(endings: list[tuple[Ending, Ending]], device: str) -> None:
    verdicts = [Verdict(CASES["zero3-lora"], bare, patched) for bare, patched in endings]
    check("verify", table.data(Outcome(device, 1.25, verdicts, [], 3)))


def test_where_each_patch_is_proved() -> None:
    proofs = [elsewhere.of(entry, CASES.values(), {}) for entry in KNOWN.entries.values()]
    check("verify", table.data(Outcome("cpu", 1.25, [], proofs, 3)))


@given(st.lists(st.builds(Difference, st.sampled_from(KINDS), st.text(max_size=5)), max_size=3))
def test_lock(differences: list[Difference]) -> None:
    made = Lock("0.1.0", {}, {})
    check("lock", lock.data(lock.Change(made, made, tuple(differences))))


def test_the_catalog_of_these_tests_is_sound() -> None:
    assert isinstance(KNOWN, Catalog)
    assert KNOWN.problems == ()
    assert os.path.exists(KNOWN.path)
